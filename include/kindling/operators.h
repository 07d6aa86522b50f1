// The floating-point operators: teacher, student log-sum-exp, loss and gradients.
//
// Shapes use the names of docs/glossary.md: B batches, S1/S2 allocated query/key length (BSND),
// T1/T2 packed totals (TND), N1 indexer heads, D head width, G main-attention heads, Gk their key
// heads. "Row layout" is layout_q, "key layout" is layout_k; they may differ. Inputs may be
// strided, outputs are dense, and no output may overlap an input or another output.
#ifndef KINDLING_OPERATORS_H_
#define KINDLING_OPERATORS_H_

#include <cstddef>
#include <cstdint>

#include "kindling/export.h"
#include "kindling/problem.h"
#include "kindling/runtime.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

// Student log-sum-exp of one row t with n > 0 visible keys:
//
//   I[j] = sum_h w[t,h] * max(q[t,h,:] . k[j,:], 0),    lse[t] = ln sum_{j<n} exp(I[j])
//
// Rows that see no key, and unused rows, get -inf.
//
// | argument  | dir | dtype            | BSND           | TND            |
// | q         | in  | bf16, fp16, fp32 | (B,S1,N1,D)    | (T1,N1,D)      |
// | k         | in  | as q             | (B,S2,1,D)     | (T2,1,D)       |
// | w         | in  | fp32             | (B,S1,N1)      | (T1,N1)        |
// | p         | in, optional | fp32    | (B,S1,1,S2)    | (T1,1,>=max n) |
// | metadata  | in, optional | int32   | (64,)          | (64,)          |
// | lse       | out | fp32             | (B,1,S1)       | (1,T1)         |
// | loss_rows | out, needs p | fp32    | as lse         | as lse         |
//
// loss_rows[t] = sum_{j<n, p_j>0} p_j (ln p_j - I[j] + lse[t]), 0 where no key is seen. Without
// loss_rows the descriptor of a given p is checked, and nothing of it is read.
struct SoftmaxLseArgs : SequenceArgs {
  ConstTensor q, k, w, p, metadata;
  Tensor lse, loss_rows;
};

// Workspace: SoftmaxLseWorkspaceBytes.
// Threads: RunOptions::num_threads; any number of callers at once.
// Repeats: bitwise, for any number of threads and any metadata, on one instruction set.
// Errors: kInvalidArgument, kInvalidDtype, kOutOfMemory; no output is written then.
// Source: DeepSeek-V3.2's lightning indexer; Huawei CANN's DenseLightningIndexerSoftmaxLse.
KINDLING_API Status SoftmaxLse(const SoftmaxLseArgs& args, const RunOptions& options = {});
KINDLING_API Result<size_t> SoftmaxLseWorkspaceBytes(const SoftmaxLseArgs& args,
                                                     int64_t num_threads = 0);

// Loss and gradients of the indexer against the teacher p, for one row with n > 0 visible keys:
//
//   S[h,j] = q[h,:] . k[j,:]      R = max(S, 0)      I[j] = sum_h w[h] R[h,j]
//   y[j] = exp(I[j] - lse)        P = sum_{j<n} p[j]
//   dI[j] = row_scale * (y[j] P - p[j])              dS[h,j] = S[h,j] > 0 ? dI[j] w[h] : 0
//   dw[h] = sum_j dI[j] R[h,j]    dq[h,:] = sum_j dS[h,j] k[j,:]
//   dk[j,:] = sum over rows and h of dS[h,j] q[h,:]
//   softmax_out[j] = y[j]         loss_rows = sum_{j<n, p_j>0} p_j (ln p_j - I[j] + lse)
//
// | argument    | dir | dtype            | BSND        | TND            |
// | q, k, w     | in  | as SoftmaxLse    |             |                |
// | p           | in  | fp32             | (B,S1,1,S2) | (T1,1,>=max n) |
// | lse         | in  | fp32             | (B,1,S1)    | (1,T1)         |
// | row_scale   | in, optional | fp32    | as lse      | as lse         |
// | metadata    | in, optional | int32   | (64,)       | (64,)          |
// | dq, dk      | out | q's dtype or fp32 | as q, k    | as q, k        |
// | dw          | out | fp32             | as w        | as w           |
// | softmax_out | out, optional | fp32   | as p        | as p           |
// | loss_rows   | out, optional | fp32   | as lse      | as lse         |
//
// A row whose row_scale is 0 has no gradients: nothing of it is read for one, NaN or not, and it
// takes no time; its loss and softmax_out are computed where they are asked for.
//
// An optional output that is absent changes no bit of the others. Every element of every output is
// written; what no row or key stands behind is exactly 0.
struct KLLossGradArgs : SequenceArgs {
  ConstTensor q, k, w, p, lse, row_scale, metadata;
  Tensor dq, dk, dw, softmax_out, loss_rows;
};

// Workspace, Threads, Repeats, Errors: as SoftmaxLse.
// Source: Huawei CANN's DenseLightningIndexerKLLossGrad; the loss is our addition.
KINDLING_API Status KLLossGrad(const KLLossGradArgs& args, const RunOptions& options = {});
KINDLING_API Result<size_t> KLLossGradWorkspaceBytes(const KLLossGradArgs& args,
                                                     int64_t num_threads = 0);

// The teacher, the head-mean attention of the main model, for one row with n > 0 visible keys.
// softmax_scale is 1 unless it is set; attention mostly has Dm^-1/2.
//
//   p[t,j] = (1/G) sum_g exp(softmax_scale * (q[t,g,:] . k[j,g*Gk/G,:]) - lse[t,g]),  j < n
//
// and exactly 0 elsewhere. Without lse it is computed first (over the visible keys), so that every
// row of p sums to 1.
//
// | argument | dir | dtype            | BSND         | TND            |
// | q        | in  | bf16, fp16, fp32 | (B,S1,G,Dm)  | (T1,G,Dm)      |
// | k        | in  | as q             | (B,S2,Gk,Dm) | (T2,Gk,Dm)     | G a multiple of Gk
// | lse      | in, optional | fp32    | (B,1,S1,G)   | (1,T1,G)       |
// | metadata | in, optional | int32   | (64,)        | (64,)          |
// | p        | out | fp32             | (B,S1,1,S2)  | (T1,1,>=max n) |
struct AttentionL1NormArgs : SequenceArgs {
  ConstTensor q, k, lse, metadata;
  double softmax_scale = 1.0;
  Tensor p;
};

// Workspace, Threads, Repeats, Errors: as SoftmaxLse.
// Source: Huawei CANN's SparseFlashMlaSoftmaxL1Norm in its dense use, for any head width.
KINDLING_API Status AttentionL1Norm(const AttentionL1NormArgs& args,
                                    const RunOptions& options = {});
KINDLING_API Result<size_t> AttentionL1NormWorkspaceBytes(const AttentionL1NormArgs& args,
                                                          int64_t num_threads = 0);

// The last dim of a teacher that AttentionL1Norm would write for these arguments (p is not read):
// S2 if both layouts are BSND, else max_seqlen_k if that is > 0, else the longest allocated key
// length. Errors: as AttentionL1Norm, and max_seqlen_k below the largest visible key count.
KINDLING_API Result<int64_t> TeacherStride(const AttentionL1NormArgs& args, int64_t max_seqlen_k);

// Sum of a dense fp32 array of loss rows in ascending order, in double. Unused rows hold 0.
KINDLING_API double TotalLoss(const float* loss_rows, int64_t num_rows);

// The definition in double precision: plain loops in the order of the formulas above, single
// threaded, every floating tensor fp64. Slow by design; shares no arithmetic with the operators.
// Nobody shares the rows out, so metadata is not looked at. Errors: as the operators otherwise.
namespace reference {
KINDLING_API Status SoftmaxLse(const SoftmaxLseArgs& args);
KINDLING_API Status KLLossGrad(const KLLossGradArgs& args);
KINDLING_API Status AttentionL1Norm(const AttentionL1NormArgs& args);
}  // namespace reference

}  // namespace kindling

#endif  // KINDLING_OPERATORS_H_
