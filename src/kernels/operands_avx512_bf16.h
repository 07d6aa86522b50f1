// Operands of products as pairs of bf16 values, on AVX512-BF16 and AVX512-BW.
#ifndef KINDLING_SRC_KERNELS_OPERANDS_AVX512_BF16_H_
#define KINDLING_SRC_KERNELS_OPERANDS_AVX512_BF16_H_

#include <bit>
#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/tile_rows.h"
#include "kernels/vec_avx512.h"

namespace kindling {

// Contract: as Fp32Operands. `ForSet` as in Avx512Vec. The instructions round to nearest even
// whatever the floating-point environment says, and take subnormal numbers for zero.
template <class ForSet>
struct Avx512Bf16Operands {
  using Vec = Avx512Vec<ForSet>;
  using Float = typename Vec::Float;
  using Int = typename Vec::Int;
  using Rows = RowKernels<Vec>;
  static constexpr int64_t kLanes = Vec::kLanes;
  static constexpr int64_t kValuesPerWord = 2;
  static constexpr int64_t kTwoVectors = 2 * kLanes;  // values of one vector of words

  static inline Float MulAdd(Float a, Float b, Float sum) {
    return _mm512_dpbf16_ps(sum, std::bit_cast<__m512bh>(a), std::bit_cast<__m512bh>(b));
  }

  static bool LoadWords(const void* row, DType, int64_t element_stride, int64_t count, Word* out) {
    const auto* from = static_cast<const uint16_t*>(row);
    const Int exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 special = 0;
    int64_t i = 0;
    if (element_stride == 1) {
      for (; i + kTwoVectors <= count; i += kTwoVectors) {
        const Int x = _mm512_loadu_si512(from + i);
        special |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
        Vec::Store(out + i / 2, Vec::FromBits(x));
      }
    }
    bool finite = special == 0;
    for (; i < count; i += 2) {
      const uint32_t low = from[i * element_stride];
      const uint32_t high = i + 1 < count ? from[(i + 1) * element_stride] : 0u;
      finite &= (low & 0x7f80u) != 0x7f80u && (high & 0x7f80u) != 0x7f80u;
      out[i / 2] = std::bit_cast<Word>(low | high << 16);
    }
    return finite;
  }

  // The low and the high half of a and b in turn: values of a become low halves of words.
  static inline Int InterleaveLow(Int a, Int b) {
    return _mm512_permutex2var_epi16(
        a,
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0),
        b);
  }
  static inline Int InterleaveHigh(Int a, Int b) {
    return _mm512_permutex2var_epi16(
        a,
        _mm512_set_epi16(63, 31, 62, 30, 61, 29, 60, 28, 59, 27, 58, 26, 57, 25, 56, 24, 55, 23, 54,
                         22, 53, 21, 52, 20, 51, 19, 50, 18, 49, 17, 48, 16),
        b);
  }

  // Columns [column, column + count) of two rows as words, then zeros up to `room`. A second row
  // that does not exist counts as zeros.
  static inline void JoinRows(const Word* rows, int64_t row_stride, int64_t num_rows,
                              int64_t column, int64_t count, int64_t room, Word* out) {
    const auto* low = reinterpret_cast<const uint16_t*>(rows) + column;
    const uint16_t* high = num_rows > 1 ? low + 2 * row_stride : nullptr;
    const Int zero = _mm512_setzero_si512();
    for (int64_t j = 0; j < room; j += kTwoVectors) {
      const int64_t some = count - j;
      // The rows are whole words and the buffer behind `out` whole panels; a part of a vector is
      // loaded and stored under a mask.
      const __mmask32 mask = some >= kTwoVectors ? ~__mmask32{0}
                             : some <= 0         ? __mmask32{0}
                                                 : (__mmask32{1} << some) - 1;
      const Int a = _mm512_maskz_loadu_epi16(mask, low + j);
      const Int b = high != nullptr ? _mm512_maskz_loadu_epi16(mask, high + j) : zero;
      Vec::Store(out + j, Vec::FromBits(InterleaveLow(a, b)));
      Vec::Store(out + j + kLanes, Vec::FromBits(InterleaveHigh(a, b)));
    }
  }

  // Two heads and 32 keys at a time.
  static void BackwardScores(const BackwardRow& row) {
    for (int64_t head = 0; head < row.num_heads; head += 2) {
      const float* scores = row.scores + head * kScoreStride;
      Word* by_head = row.ds_by_head + head * kScoreStride / 2;
      Word* by_key = row.ds_by_key + head / 2 * kScoreStride;
      Float sums[2] = {Vec::Set(0.0f), Vec::Set(0.0f)};
      int64_t j = 0;
      for (; j < row.count; j += kTwoVectors) {
        Int ds[2];
        for (int h = 0; h < 2; ++h) {
          const float* s = scores + h * kScoreStride + j;
          const Float weight = Vec::Set(row.w[head + h]);
          const Float low = Step(s, row.logits_grad + j, row.count - j, weight, sums[h]);
          const Float high = Step(s + kLanes, row.logits_grad + j + kLanes, row.count - j - kLanes,
                                  weight, sums[h]);
          ds[h] = std::bit_cast<Int>(_mm512_cvtne2ps_pbh(high, low));
          Vec::Store(by_head + h * kScoreStride / 2 + j / 2, Vec::FromBits(ds[h]));
        }
        Vec::Store(by_key + j, Vec::FromBits(InterleaveLow(ds[0], ds[1])));
        Vec::Store(by_key + j + kLanes, Vec::FromBits(InterleaveHigh(ds[0], ds[1])));
      }
      for (; j < row.padded_count; j += kTwoVectors) {
        const Float zero = Vec::Set(0.0f);
        Vec::Store(by_head + j / 2, zero);
        Vec::Store(by_head + kScoreStride / 2 + j / 2, zero);
        Vec::Store(by_key + j, zero);
        Vec::Store(by_key + j + kLanes, zero);
      }
      row.dw[head] += Vec::ReduceAdd(sums[0]);
      row.dw[head + 1] += Vec::ReduceAdd(sums[1]);
    }
  }

  // dS of one vector of keys, the first `count` of which are visible.
  static inline Float Step(const float* scores, const float* logits_grad, int64_t count,
                           Float weight, Float& sum) {
    const Float zero = Vec::Set(0.0f);
    if (count <= 0) return zero;
    const Float grad = Vec::Load(logits_grad);
    const Float s = Vec::Select(Vec::First(count), Vec::Load(scores), zero);
    sum = Vec::MulAdd(grad, Rows::Relu(s), sum);
    return Vec::Select(Vec::Greater(s, zero), Vec::Mul(grad, weight), zero);
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_OPERANDS_AVX512_BF16_H_
