// Single-threaded tile functions on raw pointers: the arithmetic of the operators. One table of
// them per instruction set; nothing here allocates, and nothing knows of threads.
//
// Every result element is a fixed sequence of operations on its own inputs: how many rows or
// columns a call covers never changes a bit of it. That is what makes the operators reproducible.
#ifndef KINDLING_SRC_KERNELS_KERNELS_H_
#define KINDLING_SRC_KERNELS_KERNELS_H_

#include <cstdint>

#include "kindling/runtime.h"
#include "kindling/tensor.h"

namespace kindling {

// Sums over keys are formed per chunk of this many keys, counted from a batch's first key, and
// added in ascending order. 256 (row, head) pairs x 256 keys of fp32 scores are 256 KiB: they stay
// in L2 between the three products that use them.
inline constexpr int64_t kKeysPerChunk = 256;

// Floats between rows of scores: one cache line more than a chunk, so that a column of scores does
// not fall into few sets of L1 (the dk product walks columns).
inline constexpr int64_t kScoreStride = kKeysPerChunk + 16;

// C = A x B, or C += A x B. Element (i, k) of A is a[i*a_row_stride + k*a_depth_stride], and one of
// the two strides is 1. B lies in panels of panel_width columns: element (k, n) is
// b[(n/panel_width)*b_panel_stride + k*panel_width + n%panel_width]. Whole panels are written to C.
struct Product {
  const float* a = nullptr;
  int64_t a_row_stride = 0;
  int64_t a_depth_stride = 0;
  const float* b = nullptr;
  int64_t b_panel_stride = 0;
  float* c = nullptr;
  int64_t c_row_stride = 0;
  int64_t num_rows = 0;
  int64_t num_panels = 0;
  int64_t depth = 0;
  bool accumulate = false;  // the new sum is formed from zero and then added to C once
};

// max and sum of exp(x - max) over some logits; the empty set has max -inf and sum 0.
struct MaxSum {
  float max;
  float sum;
};

// One row of one chunk in the backward pass.
struct GradRow {
  const float* logits = nullptr;   // I[count]
  const float* teacher = nullptr;  // p[count]
  int64_t count = 0;               // visible keys of the row in this chunk
  float lse = 0;
  float teacher_sum = 0;  // P of the whole row
  float row_scale = 1;
  float* softmax = nullptr;      // out: y[count]
  float* logits_grad = nullptr;  // out: dI[count], then zeros up to a whole vector
};

// What one chunk adds to a row's loss: sum p (ln p - I) and sum p, both over p > 0.
struct LossTerms {
  float relative_entropy;
  float teacher_sum;
};

// Buffers named `..[count]` must have room for count rounded up to 16 floats: whole vectors are
// read and written, and what lies beyond `count` is ignored.
struct KernelTable {
  Isa isa;
  int64_t panel_width;

  // Reads `count` elements of bf16, fp16 or fp32, `element_stride` apart. Returns whether all are
  // finite.
  bool (*load_row)(const void* row, DType dtype, int64_t element_stride, int64_t count, float* out);
  // Writes `count` elements, rounded to nearest even.
  void (*store_row)(const float* row, int64_t count, DType dtype, void* out);
  // Rows become columns of B: panels of panel_width rows, each [width][panel_width]. Missing rows
  // of the last panel become zeros.
  void (*pack_transposed)(const float* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                          float* panels);
  // Rows become rows of B: panels of panel_width columns, each [num_rows][panel_width],
  // `panel_stride` apart. Missing columns of the last panel become zeros.
  void (*pack_panels)(const float* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                      float* panels, int64_t panel_stride);
  void (*multiply)(const Product& product);

  // I[j] = sum_h w[h] max(S[h][j], 0), heads ascending. Rows of S are kScoreStride apart.
  void (*weigh_scores)(const float* scores, const float* w, int64_t num_heads, int64_t count,
                       float* logits);
  // max and sum of scale * x[j].
  MaxSum (*max_sum)(const float* x, int64_t count, float scale);
  // The two sets as one.
  MaxSum (*merge)(MaxSum a, MaxSum b);
  // sum_j x[j].
  float (*sum)(const float* x, int64_t count);
  // out[j] += exp(scale * x[j] - lse).
  void (*add_exp)(const float* x, int64_t count, float scale, float lse, float* out);
  // out[j] = x[j] / divisor.
  void (*divide)(const float* x, int64_t count, float divisor, float* out);

  void (*grad_row)(const GradRow& row);
  // Terms of the loss; `shift` is added to I first (pass -lse to get p (ln p - I + lse)).
  LossTerms (*loss_terms)(const float* logits, const float* teacher, int64_t count, float shift);
  // In place: S[h][j] becomes dS[h][j] for j < count and 0 for count <= j < padded_count, and
  // dw[h] += sum_j dI[j] max(S[h][j], 0).
  void (*backward_scores)(float* scores, const float* w, int64_t num_heads,
                          const float* logits_grad, int64_t count, int64_t padded_count, float* dw);
};

// The table of one instruction set; null where the build or the processor lacks it.
const KernelTable* KernelsFor(Isa isa);

// The table that operators use now (see SetIsa).
const KernelTable& CurrentKernels();

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_KERNELS_H_
