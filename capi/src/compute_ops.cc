// The three operators on floating-point tensors.
#include <memory>
#include <string_view>
#include <utility>

#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm.h"
#include "arguments.h"
#include "base/message.h"
#include "executor.h"
#include "kindling/operators.h"
#include "ops/launch.h"
#include "plan/record.h"
#include "plan/workspace.h"
#include "problem/operator_call.h"
#include "records.h"

namespace kindling::acl {
namespace {

constexpr std::string_view kKLLossGrad = "aclnnDenseLightningIndexerKLLossGrad";
constexpr std::string_view kSoftmaxLse = "aclnnDenseLightningIndexerSoftmaxLseV2";
constexpr std::string_view kTeacher = "aclnnSparseFlashMlaSoftmaxL1Norm";

// What the vendor's operators are limited to; the core is not.
constexpr int64_t kMaxHeads = 128;
constexpr int64_t kIndexerHeadDim = 128;
constexpr int64_t kTeacherHeadDim = 512;

Status CheckLimits(const CallShape& shape, int64_t head_dim) {
  if (shape.num_heads > kMaxHeads) {
    return InvalidArgument("q: expected at most ", kMaxHeads, " heads, got ", shape.num_heads);
  }
  if (shape.head_dim != head_dim) {
    return InvalidArgument("q: expected a head width of ", head_dim, ", got ", shape.head_dim);
  }
  if (shape.num_key_heads != 1) {
    return InvalidArgument("k: expected 1 key head, got ", shape.num_key_heads);
  }
  return Status();
}

using WorkspaceLimitFunction = int64_t (*)(const CallShape& shape, int64_t num_threads);

// What all three do once their arguments are bound and their descriptors checked.
template <class Args>
Status FinishPrepare(const Args& args, const ConstTensor& metadata, int64_t head_dim,
                     WorkspaceLimitFunction workspace_limit, Executor& executor) {
  KINDLING_RETURN_IF_ERROR(CheckMetadataDescriptor(metadata));
  const CallShape shape = ShapeOf(args, args.q, args.k);
  KINDLING_RETURN_IF_ERROR(CheckLimits(shape, head_dim));
  executor.workspace_bytes = workspace_limit(shape, executor.num_threads);
  return Status();
}

struct LseCall {
  OwnedArgs<SoftmaxLseArgs> args;
  ConstTensor metadata;  // of a kind that the core does not know
};

Status RunLse(const LseCall& call, const RunOptions& options) {
  if (call.metadata.has_elements()) {
    const Result<OperatorCall> checked = CheckSoftmaxLse(call.args, Precision::kNative);
    if (!checked.ok()) return checked.status();
    KINDLING_RETURN_IF_ERROR(ValidateLseRecord(call.metadata, checked.value().problem.num_rows()));
  }
  return SoftmaxLse(call.args, options);
}

struct TeacherCall {
  OwnedArgs<AttentionL1NormArgs> args;
  ConstTensor metadata;  // as LseCall's
};

Status RunTeacher(const TeacherCall& call, const RunOptions& options) {
  if (call.metadata.has_elements()) {
    const Result<OperatorCall> checked = CheckAttentionL1Norm(call.args, Precision::kNative);
    if (!checked.ok()) return checked.status();
    KINDLING_RETURN_IF_ERROR(
        ValidateTeacherRecord(call.metadata, checked.value().problem.num_rows()));
  }
  return AttentionL1Norm(call.args, options);
}

// In the layouts whose key dim is not S2, maxSeqLenK says what it is.
Status CheckMaxSeqLenK(int64_t max_seqlen_k, const AttentionL1NormArgs& args) {
  if (max_seqlen_k < 0) {
    return InvalidArgument("max_seqlen_k: expected >= 0, got ", max_seqlen_k);
  }
  const int64_t width = args.p.shape[args.p.rank - 1];
  const bool both_bsnd = args.layout_q == "BSND" && args.layout_k == "BSND";
  if (both_bsnd || max_seqlen_k == 0 || max_seqlen_k == width) return Status();
  return InvalidArgument("max_seqlen_k: expected 0 or ", width,
                         " = the last dim of softmax_l1_norm, got ", max_seqlen_k);
}

}  // namespace
}  // namespace kindling::acl

using kindling::acl::Executor;
using kindling::acl::Failure;
using kindling::acl::FailureOf;
using kindling::acl::Guarded;

extern "C" {

aclnnStatus aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize(
    const aclTensor* q, const aclTensor* k, const aclTensor* w, const aclTensor* attnSoftmaxL1Norm,
    const aclTensor* softmaxLse, const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK,
    const aclTensor* seqUsedQ, const aclTensor* seqUsedK, const aclTensor* cmpResidualK,
    const aclTensor* metadata, char* layoutQ, char* layoutK, int64_t maskMode, int64_t cmpRatio,
    const aclTensor* dq, const aclTensor* dk, const aclTensor* dw, const aclTensor* softmaxOut,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  using kindling::KLLossGradArgs;
  const auto prepare = [&](Executor& prepared) -> Failure {
    Failure failure = kindling::acl::RequireTensors({{"q", q},
                                                     {"k", k},
                                                     {"w", w},
                                                     {"attn_softmax_l1_norm", attnSoftmaxL1Norm},
                                                     {"softmax_lse", softmaxLse},
                                                     {"dq", dq},
                                                     {"dk", dk},
                                                     {"dw", dw},
                                                     {"softmax_out", softmaxOut}});
    if (failure.code != 0) return failure;
    auto args = std::make_shared<kindling::acl::OwnedArgs<KLLossGradArgs>>();
    kindling::acl::Binder binder;
    binder.Bind("q", q, args->q);
    binder.Bind("k", k, args->k);
    binder.Bind("w", w, args->w);
    binder.Bind("attn_softmax_l1_norm", attnSoftmaxL1Norm, args->p);
    binder.Bind("softmax_lse", softmaxLse, args->lse);
    binder.BindSequence({.cu_seqlens_q = cuSeqLensQ,
                         .cu_seqlens_k = cuSeqLensK,
                         .seqused_q = seqUsedQ,
                         .seqused_k = seqUsedK,
                         .cmp_residual_k = cmpResidualK,
                         .layout_q = layoutQ,
                         .layout_k = layoutK,
                         .mask_mode = maskMode,
                         .cmp_ratio = cmpRatio},
                        *args);
    binder.Bind("metadata", metadata, args->metadata);
    binder.Bind("dq", dq, args->dq);
    binder.Bind("dk", dk, args->dk);
    binder.Bind("dw", dw, args->dw);
    binder.Bind("softmax_out", softmaxOut, args->softmax_out);
    if (!binder.status().ok()) return FailureOf(binder.status());
    kindling::Status status = kindling::DescribeKLLossGrad(*args, kindling::Precision::kNative);
    if (status.ok()) {
      status = kindling::acl::FinishPrepare(*args, args->metadata, kindling::acl::kIndexerHeadDim,
                                            kindling::KLLossGradWorkspaceLimit, prepared);
    }
    prepared.run = [args = std::move(args)](const kindling::RunOptions& options) {
      return kindling::KLLossGrad(*args, options);
    };
    return FailureOf(status);
  };
  return Guarded(ACLNN_ERR_INNER_CREATE_EXECUTOR, [&] {
    return kindling::acl::Prepare(kindling::acl::kKLLossGrad, workspaceSize, executor, prepare);
  });
}

aclnnStatus aclnnDenseLightningIndexerKLLossGrad(void* workspace, uint64_t workspaceSize,
                                                 aclOpExecutor* executor, aclrtStream stream) {
  return Guarded(ACLNN_ERR_INNER, [&] {
    return kindling::acl::Launch(kindling::acl::kKLLossGrad, workspace, workspaceSize, executor,
                                 stream);
  });
}

aclnnStatus aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize(
    const aclTensor* queryIndex, const aclTensor* keyIndex, const aclTensor* weight,
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, const aclTensor* metadata,
    char* layoutQ, char* layoutK, int64_t maskMode, int64_t cmpRatio,
    const aclTensor* softmaxLseOut, uint64_t* workspaceSize, aclOpExecutor** executor) {
  const auto prepare = [&](Executor& prepared) -> Failure {
    Failure failure = kindling::acl::RequireTensors({{"query_index", queryIndex},
                                                     {"key_index", keyIndex},
                                                     {"weight", weight},
                                                     {"softmax_lse_out", softmaxLseOut}});
    if (failure.code != 0) return failure;
    auto call = std::make_shared<kindling::acl::LseCall>();
    kindling::acl::Binder binder;
    binder.Bind("query_index", queryIndex, call->args.q);
    binder.Bind("key_index", keyIndex, call->args.k);
    binder.Bind("weight", weight, call->args.w);
    binder.BindSequence({.cu_seqlens_q = cuSeqLensQ,
                         .cu_seqlens_k = cuSeqLensK,
                         .seqused_q = seqUsedQ,
                         .seqused_k = seqUsedK,
                         .cmp_residual_k = cmpResidualK,
                         .layout_q = layoutQ,
                         .layout_k = layoutK,
                         .mask_mode = maskMode,
                         .cmp_ratio = cmpRatio},
                        call->args);
    binder.Bind("metadata", metadata, call->metadata);
    binder.Bind("softmax_lse_out", softmaxLseOut, call->args.lse);
    if (!binder.status().ok()) return FailureOf(binder.status());
    kindling::Status status =
        kindling::DescribeSoftmaxLse(call->args, kindling::Precision::kNative);
    if (status.ok()) {
      status =
          kindling::acl::FinishPrepare(call->args, call->metadata, kindling::acl::kIndexerHeadDim,
                                       kindling::SoftmaxLseWorkspaceLimit, prepared);
    }
    prepared.run = [call = std::move(call)](const kindling::RunOptions& options) {
      return kindling::acl::RunLse(*call, options);
    };
    return FailureOf(status);
  };
  return Guarded(ACLNN_ERR_INNER_CREATE_EXECUTOR, [&] {
    return kindling::acl::Prepare(kindling::acl::kSoftmaxLse, workspaceSize, executor, prepare);
  });
}

aclnnStatus aclnnDenseLightningIndexerSoftmaxLseV2(void* workspace, uint64_t workspaceSize,
                                                   aclOpExecutor* executor, aclrtStream stream) {
  return Guarded(ACLNN_ERR_INNER, [&] {
    return kindling::acl::Launch(kindling::acl::kSoftmaxLse, workspace, workspaceSize, executor,
                                 stream);
  });
}

aclnnStatus aclnnSparseFlashMlaSoftmaxL1NormGetWorkspaceSize(
    const aclTensor* q, const aclTensor* k, const aclTensor* softmaxLse,
    const aclTensor* sparseIndices, const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK,
    const aclTensor* seqUsedQ, const aclTensor* seqUsedK, const aclTensor* cmpResidualK,
    const aclTensor* topkLength, const aclTensor* metadata, double softmaxScale, int64_t maxSeqLenK,
    int64_t cmpRatio, int64_t maskMode, char* layoutQ, char* layoutK,
    const aclTensor* softmaxL1Norm, uint64_t* workspaceSize, aclOpExecutor** executor) {
  const auto prepare = [&](Executor& prepared) -> Failure {
    Failure failure = kindling::acl::RequireTensors(
        {{"q", q}, {"k", k}, {"softmax_lse", softmaxLse}, {"softmax_l1_norm", softmaxL1Norm}});
    if (failure.code != 0) return failure;
    for (const auto& [name, tensor] : {kindling::acl::NamedTensor{"sparse_indices", sparseIndices},
                                       kindling::acl::NamedTensor{"topk_length", topkLength}}) {
      if (tensor == nullptr) continue;
      return {ACLNN_ERR_PARAM_INVALID,
              kindling::Concat(
                  name, ": expected null, as only dense attention is supported, got a tensor")};
    }
    auto call = std::make_shared<kindling::acl::TeacherCall>();
    kindling::acl::Binder binder;
    binder.Bind("q", q, call->args.q);
    binder.Bind("k", k, call->args.k);
    binder.Bind("softmax_lse", softmaxLse, call->args.lse);
    binder.BindSequence({.cu_seqlens_q = cuSeqLensQ,
                         .cu_seqlens_k = cuSeqLensK,
                         .seqused_q = seqUsedQ,
                         .seqused_k = seqUsedK,
                         .cmp_residual_k = cmpResidualK,
                         .layout_q = layoutQ,
                         .layout_k = layoutK,
                         .mask_mode = maskMode,
                         .cmp_ratio = cmpRatio},
                        call->args);
    binder.Bind("metadata", metadata, call->metadata);
    binder.Bind("softmax_l1_norm", softmaxL1Norm, call->args.p);
    if (!binder.status().ok()) return FailureOf(binder.status());
    call->args.softmax_scale = softmaxScale;
    kindling::Status status =
        kindling::DescribeAttentionL1Norm(call->args, kindling::Precision::kNative);
    if (status.ok()) status = kindling::acl::CheckMaxSeqLenK(maxSeqLenK, call->args);
    if (status.ok()) {
      status =
          kindling::acl::FinishPrepare(call->args, call->metadata, kindling::acl::kTeacherHeadDim,
                                       kindling::AttentionL1NormWorkspaceLimit, prepared);
    }
    prepared.run = [call = std::move(call)](const kindling::RunOptions& options) {
      return kindling::acl::RunTeacher(*call, options);
    };
    return FailureOf(status);
  };
  return Guarded(ACLNN_ERR_INNER_CREATE_EXECUTOR, [&] {
    return kindling::acl::Prepare(kindling::acl::kTeacher, workspaceSize, executor, prepare);
  });
}

aclnnStatus aclnnSparseFlashMlaSoftmaxL1Norm(void* workspace, uint64_t workspaceSize,
                                             aclOpExecutor* executor, aclrtStream stream) {
  return Guarded(ACLNN_ERR_INNER, [&] {
    return kindling::acl::Launch(kindling::acl::kTeacher, workspace, workspaceSize, executor,
                                 stream);
  });
}

}  // extern "C"
