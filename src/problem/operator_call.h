// The floating-point operators' arguments, checked: what the operators and the reference start
// from.
#ifndef KINDLING_SRC_PROBLEM_OPERATOR_CALL_H_
#define KINDLING_SRC_PROBLEM_OPERATOR_CALL_H_

#include <cstdint>
#include <utility>

#include "base/row_view.h"
#include "kindling/operators.h"
#include "kindling/problem.h"
#include "kindling/status.h"

namespace kindling {

// What the floating tensors must be.
enum class Precision {
  kNative,  // q, k in bf16, fp16 or fp32, everything else fp32
  kDouble,  // all fp64: the reference
};

// q and k whose dot products an operator forms.
struct Operands {
  int64_t num_heads = 0;      // N1 or G
  int64_t num_key_heads = 1;  // 1 or Gk
  int64_t head_dim = 0;       // D or Dm
  RowView q, k;
};

// One checked call. Views that the operator or the caller does without are empty. Rows of `q`, `w`,
// `p`, `lse` and what mirrors them follow layout_q; `k` and `dk` follow layout_k.
struct OperatorCall {
  explicit OperatorCall(Problem checked) : problem(std::move(checked)) {}

  Problem problem;
  Operands indexer;          // of SoftmaxLse and KLLossGrad
  Operands attention;        // of AttentionL1Norm
  int64_t row_stride_p = 0;  // last dim of p and softmax_out
  RowView w, p, lse, row_scale;
  RowView dq, dk, dw, softmax_out, loss_rows, lse_out, p_out;
};

// What descriptors tell, without reading an element of any tensor: all checks of the functions
// below but those of lengths' values and of what these imply. For callers whose data is still to
// come.
Status DescribeSoftmaxLse(const SoftmaxLseArgs& args, Precision precision);
Status DescribeKLLossGrad(const KLLossGradArgs& args, Precision precision);
Status DescribeAttentionL1Norm(const AttentionL1NormArgs& args, Precision precision);

// Requires of all: nothing; every argument is untrusted. The metadata record is not looked at.
Result<OperatorCall> CheckSoftmaxLse(const SoftmaxLseArgs& args, Precision precision);
Result<OperatorCall> CheckKLLossGrad(const KLLossGradArgs& args, Precision precision);
Result<OperatorCall> CheckAttentionL1Norm(const AttentionL1NormArgs& args, Precision precision);

}  // namespace kindling

#endif  // KINDLING_SRC_PROBLEM_OPERATOR_CALL_H_
