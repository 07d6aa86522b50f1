// A vector of floats for any processor, on the vector extension that GCC and Clang share: they map
// it to what the target has (SSE2, NEON, or scalars). vec_avx2.h offers the same operations.
#ifndef KINDLING_SRC_KERNELS_VEC_PORTABLE_H_
#define KINDLING_SRC_KERNELS_VEC_PORTABLE_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/float16.h"

namespace kindling {

// Contract of a vector layer. Float, Int and Mask hold kLanes lanes. Min and Max return the second
// operand where either is NaN (so that Max(zero, x) keeps a NaN in x). A tile of products is
// kTileRows rows by kPanelVectors vectors. MulAdd(a, b, c) is a*b + c, fused where the instruction
// set fuses. Reductions add lanes in a fixed order.
struct PortableVec {
  static constexpr int kLanes = 4;
  // 6 rows x 2 vectors of sums, 2 of loaded columns and 1 broadcast: 15 of SSE2's 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kPanelVectors = 2;

  using Float = float __attribute__((vector_size(kLanes * sizeof(float))));
  using Int = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));
  using Mask = Int;  // lanes of 0 or -1

  static inline Float Set(float x) { return Float{x, x, x, x}; }
  static inline Float Load(const float* p) {
    Float out;
    std::memcpy(&out, p, sizeof(out));
    return out;
  }
  static inline void Store(float* p, Float a) { std::memcpy(p, &a, sizeof(a)); }
  static inline Float LoadBf16(const uint16_t* p) {
    return Float{Fp32FromBf16(p[0]), Fp32FromBf16(p[1]), Fp32FromBf16(p[2]), Fp32FromBf16(p[3])};
  }
  static inline Float LoadFp16(const uint16_t* p) {
    return Float{Fp32FromFp16(p[0]), Fp32FromFp16(p[1]), Fp32FromFp16(p[2]), Fp32FromFp16(p[3])};
  }
  static inline void StoreBf16(uint16_t* p, Float a) {
    for (int i = 0; i < kLanes; ++i) p[i] = Bf16FromFp32(a[i]);
  }
  static inline void StoreFp16(uint16_t* p, Float a) {
    for (int i = 0; i < kLanes; ++i) p[i] = Fp16FromFp32(a[i]);
  }

  static inline Float Add(Float a, Float b) { return a + b; }
  static inline Float Sub(Float a, Float b) { return a - b; }
  static inline Float Mul(Float a, Float b) { return a * b; }
  static inline Float Div(Float a, Float b) { return a / b; }
  static inline Float MulAdd(Float a, Float b, Float c) { return a * b + c; }
  static inline Float Min(Float a, Float b) { return a < b ? a : b; }
  static inline Float Max(Float a, Float b) { return a > b ? a : b; }

  static inline Mask Greater(Float a, Float b) { return a > b; }
  // The first `count` lanes.
  static inline Mask First(int64_t count) {
    const int32_t limit = count > kLanes ? kLanes : static_cast<int32_t>(count);
    return Int{0, 1, 2, 3} < SetInt(limit);
  }
  static inline Float Select(Mask m, Float a, Float b) { return m ? a : b; }

  // Nearest integer. Requires: |x| < 2^22, or NaN (then any value).
  static inline Int Round(Float a) {
    // Adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
    return Bits(a + Set(0x1.8p23f)) - SetInt(0x4b400000);
  }
  static inline Float ToFloat(Int a) { return __builtin_convertvector(a, Float); }
  static inline Float FromBits(Int a) { return std::bit_cast<Float>(a); }
  static inline Int Bits(Float a) { return std::bit_cast<Int>(a); }
  static inline Int SetInt(int32_t x) { return Int{x, x, x, x}; }
  static inline Int AddInt(Int a, Int b) { return a + b; }
  static inline Int SubInt(Int a, Int b) { return a - b; }
  // Shifts keep or copy the sign bit as two's complement does.
  template <int kBits>
  static inline Int ShiftLeft(Int a) {
    return a << kBits;
  }
  template <int kBits>
  static inline Int ShiftRight(Int a) {
    return a >> kBits;
  }

  static inline float ReduceAdd(Float a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static inline float ReduceMax(Float a) {
    float out = a[0];
    for (int i = 1; i < kLanes; ++i) out = out > a[i] ? out : a[i];
    return out;
  }

  // Rows become columns; no bit of a lane changes.
  static inline void Transpose(Float (&rows)[kLanes]) {
    const Float a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    for (int i = 0; i < kLanes; ++i) rows[i] = Float{a[i], b[i], c[i], d[i]};
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_VEC_PORTABLE_H_
