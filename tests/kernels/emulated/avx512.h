// Intrinsics of AVX-512 in standard C++, for processors that lack it: SIMDe's, and those that the
// kernels use and SIMDe 0.7.4 does not have. Included before kernels_avx512*.cc, in place of
// <immintrin.h>.
#ifndef KINDLING_TESTS_KERNELS_EMULATED_AVX512_H_
#define KINDLING_TESTS_KERNELS_EMULATED_AVX512_H_

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

using __mmask16 = simde__mmask16;
using __mmask32 = simde__mmask32;

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/float16.h"

namespace kindling::test {

// What a vector holds, lane by lane.
template <class Lane, class Vector>
inline std::array<Lane, sizeof(Vector) / sizeof(Lane)> LanesOfVector(const Vector& vector) {
  std::array<Lane, sizeof(Vector) / sizeof(Lane)> lanes;
  std::memcpy(lanes.data(), &vector, sizeof(vector));
  return lanes;
}

// The vector of function(lane) over lanes 0, 1, 2, ...
template <class Vector, class Lane, class Function>
inline Vector VectorOf(Function function) {
  std::array<Lane, sizeof(Vector) / sizeof(Lane)> lanes;
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<Lane>(function(i));
  Vector vector;
  std::memcpy(&vector, lanes.data(), sizeof(vector));
  return vector;
}

// SIMDe multiplies, rounds and adds. The product is exact here; rounding the sum to double first
// hardly ever shows.
inline __m512 EmulatedFmaddPs(__m512 a, __m512 b, __m512 c) {
  const auto x = LanesOfVector<float>(a);
  const auto y = LanesOfVector<float>(b);
  const auto z = LanesOfVector<float>(c);
  return VectorOf<__m512, float>([&](size_t i) { return static_cast<double>(x[i]) * y[i] + z[i]; });
}
// SIMDe's overflows where 2^n alone does.
inline __m512 EmulatedScalefPs(__m512 a, __m512 n) {
  const auto in = LanesOfVector<float>(a);
  const auto exponents = LanesOfVector<float>(n);
  return VectorOf<__m512, float>(
      [&](size_t i) { return std::ldexp(in[i], static_cast<int>(std::floor(exponents[i]))); });
}
inline __m512i EmulatedCvtpsEpi32(__m512 a) {
  const auto in = LanesOfVector<float>(a);
  return VectorOf<__m512i, int32_t>([&](size_t i) {
    const float rounded = std::nearbyint(in[i]);
    return rounded >= -0x1p31f && rounded < 0x1p31f ? static_cast<int32_t>(rounded) : INT32_MIN;
  });
}
inline __m512 EmulatedCvtepi32Ps(__m512i a) {
  const auto in = LanesOfVector<int32_t>(a);
  return VectorOf<__m512, float>([&](size_t i) { return in[i]; });
}
inline __m512i EmulatedSraiEpi32(__m512i a, int bits) {
  const auto in = LanesOfVector<int32_t>(a);
  return VectorOf<__m512i, int32_t>([&](size_t i) { return in[i] >> bits; });
}
inline __m512i EmulatedCvtepu16Epi32(__m256i a) {
  const auto in = LanesOfVector<uint16_t>(a);
  return VectorOf<__m512i, uint32_t>([&](size_t i) { return in[i]; });
}
inline __m256i EmulatedCvtepi32Epi16(__m512i a) {
  const auto in = LanesOfVector<uint32_t>(a);
  return VectorOf<__m256i, uint16_t>([&](size_t i) { return in[i]; });
}
inline __m512 EmulatedCvtphPs(__m256i a) {
  const auto in = LanesOfVector<uint16_t>(a);
  return VectorOf<__m512, float>([&](size_t i) { return Fp32FromFp16(in[i]); });
}
inline __m256i EmulatedCvtpsPh(__m512 a) {
  const auto in = LanesOfVector<float>(a);
  return VectorOf<__m256i, uint16_t>([&](size_t i) { return Fp16FromFp32(in[i]); });
}
inline __mmask32 EmulatedCmpeqEpi16Mask(__m512i a, __m512i b) {
  const auto x = LanesOfVector<uint16_t>(a);
  const auto y = LanesOfVector<uint16_t>(b);
  __mmask32 mask = 0;
  for (size_t i = 0; i < x.size(); ++i) mask |= static_cast<__mmask32>(x[i] == y[i]) << i;
  return mask;
}
// Touches the elements under the mask only, as the instruction does.
inline __m512i EmulatedMaskzLoaduEpi16(__mmask32 mask, const void* p) {
  return VectorOf<__m512i, uint16_t>([&](size_t i) {
    uint16_t value = 0;
    if ((mask >> i & 1) != 0) std::memcpy(&value, static_cast<const uint16_t*>(p) + i, 2);
    return value;
  });
}
// Rounds to nearest even, subnormal inputs as zeros.
inline __m512bh EmulatedCvtne2psPbh(__m512 high, __m512 low) {
  const auto a = LanesOfVector<float>(low);
  const auto b = LanesOfVector<float>(high);
  return VectorOf<__m512bh, uint16_t>([&](size_t i) {
    const float x = i < a.size() ? a[i] : b[i - a.size()];
    return Bf16FromFp32(std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x);
  });
}

}  // namespace kindling::test

#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps kindling::test::EmulatedFmaddPs
#undef _mm512_scalef_ps
#define _mm512_scalef_ps kindling::test::EmulatedScalefPs
#define _mm512_shuffle_f32x4(a, b, blocks) \
  _mm512_castsi512_ps(_mm512_shuffle_i32x4(_mm512_castps_si512(a), _mm512_castps_si512(b), blocks))
#define _mm512_cvtps_epi32 kindling::test::EmulatedCvtpsEpi32
#define _mm512_cvtepi32_ps kindling::test::EmulatedCvtepi32Ps
#define _mm512_srai_epi32 kindling::test::EmulatedSraiEpi32
#define _mm512_cvtepu16_epi32 kindling::test::EmulatedCvtepu16Epi32
#define _mm512_cvtepi32_epi16 kindling::test::EmulatedCvtepi32Epi16
#define _mm512_cvtph_ps kindling::test::EmulatedCvtphPs
#define _mm512_cvtps_ph(a, rounding) kindling::test::EmulatedCvtpsPh(a)
#define _mm512_cmpeq_epi16_mask kindling::test::EmulatedCmpeqEpi16Mask
#define _mm512_maskz_loadu_epi16 kindling::test::EmulatedMaskzLoaduEpi16
#define _mm512_cvtne2ps_pbh kindling::test::EmulatedCvtne2psPbh

#endif  // KINDLING_TESTS_KERNELS_EMULATED_AVX512_H_
