// Operands of products as fp32 values, one a word.
#ifndef KINDLING_SRC_KERNELS_OPERANDS_FP32_H_
#define KINDLING_SRC_KERNELS_OPERANDS_FP32_H_

#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/tile_rows.h"

namespace kindling {

// Contract of operands: `Vec` is their vector layer, whose Float also holds kLanes words; MulAdd
// multiplies two vectors of words and adds all products of a lane to the lane's fp32 sum; JoinRows
// makes one row of a panel of kValuesPerWord rows.
template <class VecLayer>
struct Fp32Operands {
  using Vec = VecLayer;
  using Float = typename Vec::Float;
  using Rows = RowKernels<Vec>;
  static constexpr int64_t kLanes = Vec::kLanes;
  static constexpr int64_t kValuesPerWord = 1;

  static inline Float MulAdd(Float a, Float b, Float sum) { return Vec::MulAdd(a, b, sum); }

  static bool LoadWords(const void* row, DType dtype, int64_t element_stride, int64_t count,
                        Word* out) {
    return Rows::LoadRow(row, dtype, element_stride, count, out);
  }

  // Columns [column, column + count) of one row, then zeros up to `room`.
  static inline void JoinRows(const Word* row, int64_t, int64_t, int64_t column, int64_t count,
                              int64_t room, Word* out) {
    int64_t j = 0;
    for (; j + kLanes <= count; j += kLanes) Vec::Store(out + j, Vec::Load(row + column + j));
    for (; j < count; ++j) out[j] = row[column + j];
    for (; j < room; ++j) out[j] = 0.0f;
  }

  static void BackwardScores(const BackwardRow& row) {
    const Float zero = Vec::Set(0.0f);
    for (int64_t head = 0; head < row.num_heads; ++head) {
      float* scores = row.scores + head * kScoreStride;
      const Float weight = Vec::Set(row.w[head]);
      Float sum = zero;
      const auto step = [&](int64_t j, Float s) {
        const Float grad = Vec::Load(row.logits_grad + j);
        sum = Vec::MulAdd(grad, Rows::Relu(s), sum);
        Vec::Store(scores + j, Vec::Select(Vec::Greater(s, zero), Vec::Mul(grad, weight), zero));
      };
      int64_t j = 0;
      for (; j + kLanes <= row.count; j += kLanes) step(j, Vec::Load(scores + j));
      if (j < row.count) {
        step(j, Vec::Select(Vec::First(row.count - j), Vec::Load(scores + j), zero));
        j += kLanes;
      }
      for (; j < row.padded_count; j += kLanes) Vec::Store(scores + j, zero);
      row.dw[head] += Vec::ReduceAdd(sum);
    }
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_OPERANDS_FP32_H_
