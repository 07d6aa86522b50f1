// The fields of the operators' argument structs by name, once: front doors bind, check and pass on
// what these visit, and src/problem/schema.cc describes it.
#ifndef KINDLING_SRC_PROBLEM_ARGUMENTS_H_
#define KINDLING_SRC_PROBLEM_ARGUMENTS_H_

#include <cstdint>

#include "kindling/operators.h"
#include "kindling/problem.h"

namespace kindling {

// What a field is called at the front doors, and whether a call may leave it out.
struct ArgumentName {
  const char* text;
  bool is_optional = true;
};
inline constexpr bool kRequired = false;

// visit(ArgumentName, field) for all that says which rows see which keys. Fields are ConstTensor,
// std::string_view or int64_t.
template <class Visit>
void VisitLengths(SequenceArgs& args, Visit&& visit) {
  visit(ArgumentName{"cu_seqlens_q"}, args.cu_seqlens_q);
  visit(ArgumentName{"cu_seqlens_k"}, args.cu_seqlens_k);
  visit(ArgumentName{"seqused_q"}, args.seqused_q);
  visit(ArgumentName{"seqused_k"}, args.seqused_k);
  visit(ArgumentName{"cmp_residual_k"}, args.cmp_residual_k);
}
template <class Visit>
void VisitRowAttributes(SequenceArgs& args, Visit&& visit) {
  visit(ArgumentName{"layout_q"}, args.layout_q);
  visit(ArgumentName{"layout_k"}, args.layout_k);
  visit(ArgumentName{"mask_mode"}, args.mask_mode);
  visit(ArgumentName{"cmp_ratio"}, args.cmp_ratio);
}
// All of them, and the record where the operator takes one.
template <class Args, class Visit>
void VisitRows(Args& args, Visit&& visit) {
  VisitLengths(args, visit);
  VisitRowAttributes(args, visit);
  if constexpr (requires { args.metadata; }) visit(ArgumentName{"metadata"}, args.metadata);
}

// The same for an operator's own arguments: ConstTensor, double or int64_t, then its outputs,
// Tensor.
template <class Visit>
void VisitOwn(SoftmaxLseArgs& args, Visit&& visit) {
  visit(ArgumentName{"q", kRequired}, args.q);
  visit(ArgumentName{"k", kRequired}, args.k);
  visit(ArgumentName{"w", kRequired}, args.w);
  visit(ArgumentName{"p"}, args.p);
  visit(ArgumentName{"lse", kRequired}, args.lse);
  visit(ArgumentName{"loss_rows"}, args.loss_rows);
}
template <class Visit>
void VisitOwn(KLLossGradArgs& args, Visit&& visit) {
  visit(ArgumentName{"q", kRequired}, args.q);
  visit(ArgumentName{"k", kRequired}, args.k);
  visit(ArgumentName{"w", kRequired}, args.w);
  visit(ArgumentName{"p", kRequired}, args.p);
  visit(ArgumentName{"lse", kRequired}, args.lse);
  visit(ArgumentName{"row_scale"}, args.row_scale);
  visit(ArgumentName{"dq", kRequired}, args.dq);
  visit(ArgumentName{"dk", kRequired}, args.dk);
  visit(ArgumentName{"dw", kRequired}, args.dw);
  visit(ArgumentName{"softmax_out"}, args.softmax_out);
  visit(ArgumentName{"loss_rows"}, args.loss_rows);
}
template <class Visit>
void VisitOwn(AttentionL1NormArgs& args, Visit&& visit) {
  visit(ArgumentName{"q", kRequired}, args.q);
  visit(ArgumentName{"k", kRequired}, args.k);
  visit(ArgumentName{"lse"}, args.lse);
  visit(ArgumentName{"softmax_scale"}, args.softmax_scale);
  visit(ArgumentName{"p", kRequired}, args.p);
}
template <class Visit>
void VisitOwn(MetadataArgs& args, Visit&& visit) {
  visit(ArgumentName{"num_heads_q", kRequired}, args.num_heads_q);
  visit(ArgumentName{"num_heads_k", kRequired}, args.num_heads_k);
  visit(ArgumentName{"head_dim", kRequired}, args.head_dim);
  visit(ArgumentName{"batch_size"}, args.batch_size);
  visit(ArgumentName{"max_seqlen_q"}, args.max_seqlen_q);
  visit(ArgumentName{"max_seqlen_k"}, args.max_seqlen_k);
}

}  // namespace kindling

#endif  // KINDLING_SRC_PROBLEM_ARGUMENTS_H_
