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

// Operands of products lie in words of 32 bits: an fp32 value, or two bf16 values that follow each
// other along the depth of the product, the first one in the low half. KernelTable says which.
using Word = float;

// C = A x B, or C += A x B. Word (i, k) of A is a[i*a_row_stride + k]. B lies in panels of
// panel_width columns: word (k, n) is
// b[(n/panel_width)*b_panel_stride + k*b_depth_stride + n%panel_width]. C is fp32; whole vectors of
// 16 columns of it are written at most.
struct Product {
  const Word* a = nullptr;
  int64_t a_row_stride = 0;
  const Word* b = nullptr;
  int64_t b_panel_stride = 0;
  int64_t b_depth_stride = 0;
  float* c = nullptr;
  int64_t c_row_stride = 0;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  int64_t depth = 0;  // words
  // The new sum is formed from zero and then added to C once; tiles of AMX go on from C.
  bool accumulate = false;
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

// The scores of one row in one chunk, on their way to dS.
struct BackwardRow {
  float* scores = nullptr;             // S[num_heads][kScoreStride]; spoilt where dS is fp32
  const float* w = nullptr;            // [num_heads]
  int64_t num_heads = 0;               // a multiple of values_per_word
  const float* logits_grad = nullptr;  // dI[count], then zeros up to a whole vector
  int64_t count = 0;                   // visible keys of the row in this chunk
  int64_t padded_count = 0;            // dS is written up to here, at least
  float* dw = nullptr;                 // in, out: [num_heads]
  Word* ds_by_head = nullptr;          // out: A of dq; words of keys, ds_by_head_stride apart
  Word* ds_by_key = nullptr;           // out: B of dk; words of heads, kScoreStride apart
};

// Buffers named `..[count]` must have room for count rounded up to 16 floats: whole vectors are
// read and written, and what lies beyond `count` is ignored.
struct KernelTable {
  int64_t panel_width;
  int64_t values_per_word;    // of the operands of products
  int64_t ds_by_head_stride;  // words; fp32 scores become dS in place, which is both its orders
  bool packs_keys_once;       // products are so fast that packing keys for every block would show

  // Reads `count` elements of bf16, fp16 or fp32, `element_stride` apart. Returns whether all are
  // finite.
  bool (*load_row)(const void* row, DType dtype, int64_t element_stride, int64_t count, float* out);
  // Writes `count` elements, rounded to nearest even.
  void (*store_row)(const float* row, int64_t count, DType dtype, void* out);
  // Reads `count` elements as words along the row, the last one filled up with 0. Returns whether
  // all are finite. Requires: the dtype of the table, where values_per_word is 2.
  bool (*load_words)(const void* row, DType dtype, int64_t element_stride, int64_t count,
                     Word* out);
  // Rows of words become columns of B: panels of panel_width rows, each [num_words][panel_width].
  // Missing rows of the last panel become zeros.
  void (*pack_transposed)(const Word* rows, int64_t row_stride, int64_t num_rows, int64_t num_words,
                          Word* panels);
  // Rows of words become columns of A, values_per_word of them to a word: out[width][words of
  // num_rows], rows of it `out_stride` apart with room for whole vectors of 16. A missing row of
  // the last word becomes zeros.
  void (*pack_columns)(const Word* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                       Word* out, int64_t out_stride);
  // out[column][row] = in[row][column]; rows of out have room for whole vectors of 16.
  void (*transpose)(const float* in, int64_t in_stride, int64_t num_rows, int64_t num_columns,
                    float* out, int64_t out_stride);
  // Rows of words become rows of B, values_per_word of them at a time: panels of panel_width
  // columns, each [words of num_rows][panel_width], `panel_stride` apart. Missing columns of the
  // last panel and missing rows of the last word become zeros.
  void (*pack_panels)(const Word* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                      Word* panels, int64_t panel_stride);
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
  // dS[h][j] = S > 0 ? dI[j] w[h] : 0 for j < count, 0 from there to padded_count, and
  // dw[h] += sum_j dI[j] max(S[h][j], 0).
  void (*backward_scores)(const BackwardRow& row);
};

// The table of one instruction set for q and k of `dtype`; null where the build or the processor
// lacks it.
const KernelTable* KernelsFor(Isa isa, DType dtype = DType::kFloat32);

// The table that operators use now (see SetIsa) for q and k of `dtype`.
const KernelTable& CurrentKernels(DType dtype = DType::kFloat32);

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_KERNELS_H_
