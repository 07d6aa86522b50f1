// The three metadata operators: checks on descriptors in phase 1, on values with the task.
#include <functional>
#include <memory>
#include <utility>

#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2_metadata.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm_metadata.h"
#include "arguments.h"
#include "base/message.h"
#include "config.h"
#include "executor.h"
#include "kindling/metadata.h"
#include "problem/lengths.h"
#include "problem/tensor_memory.h"
#include "records.h"

namespace kindling::acl {
namespace {

constexpr std::string_view kKLLossGrad = "aclnnDenseLightningIndexerKLLossGradMetadata";
constexpr std::string_view kSoftmaxLse = "aclnnDenseLightningIndexerSoftmaxLseV2Metadata";
constexpr std::string_view kTeacher = "aclnnSparseFlashMlaSoftmaxL1NormMetadata";
constexpr int64_t kTeacherHeadDim = 512;

struct Attributes {
  int64_t batch_size;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
  int64_t num_heads_q;
  int64_t num_heads_k;
  int64_t head_dim;
};

struct MetadataCall {
  OwnedArgs<MetadataArgs> args;
  Tensor metadata;
};

// Makes the record of `call` when its lengths are there.
using MakeRecord = Status (*)(const MetadataCall& call);

Status MakeKLRecord(const MetadataCall& call) { return MakeMetadata(call.args, call.metadata); }

template <MetadataWords (*kSplit)(int64_t num_rows, int64_t num_cores), int64_t kHeadDim>
Status MakeCompanionRecord(const MetadataCall& call) {
  const ConstTensor metadata = call.metadata;
  const Result<Lengths> lengths = DescribeMetadataArgs(call.args, &metadata, kHeadDim);
  if (!lengths.ok()) return lengths.status();
  KINDLING_RETURN_IF_ERROR(CheckData("metadata", metadata.data, DType::kInt32));
  const Result<LengthTotals> totals = CheckLengthValues(lengths.value());
  if (!totals.ok()) return totals.status();
  StoreWords(kSplit(totals.value().num_rows, call.args.num_cores), call.metadata);
  return Status();
}

Failure PrepareMetadata(const SequenceInputs& inputs, const Attributes& attributes,
                        const aclTensor* metadata, int64_t head_dim, MakeRecord make,
                        Executor& executor) {
  auto call = std::make_shared<MetadataCall>();
  Binder binder;
  binder.BindSequence(inputs, call->args);
  binder.Bind("metadata", metadata, call->metadata);
  if (!binder.status().ok()) return FailureOf(binder.status());
  MetadataArgs& args = call->args;
  args.batch_size = attributes.batch_size;
  args.max_seqlen_q = attributes.max_seqlen_q;
  args.max_seqlen_k = attributes.max_seqlen_k;
  args.num_heads_q = attributes.num_heads_q;
  args.num_heads_k = attributes.num_heads_k;
  args.head_dim = attributes.head_dim;
  const Result<Device> device = ConfiguredDevice();
  if (!device.ok()) return FailureOf(device.status());
  args.num_cores = device.value().num_cores;
  args.num_vector_cores = device.value().num_vector_cores;
  const ConstTensor out = call->metadata;
  const Result<Lengths> lengths = DescribeMetadataArgs(args, &out, head_dim);
  if (!lengths.ok()) return FailureOf(lengths.status());
  executor.run = [call = std::move(call), make](const RunOptions&) { return make(*call); };
  return {};
}

}  // namespace
}  // namespace kindling::acl

using kindling::acl::Executor;
using kindling::acl::Failure;
using kindling::acl::Guarded;

extern "C" {

aclnnStatus aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, int64_t batchSize, int64_t maxSeqLenQ,
    int64_t maxSeqLenK, int64_t numHeadsQ, int64_t numHeadsK, int64_t headDim, char* layoutQ,
    char* layoutK, int64_t maskMode, int64_t cmpRatio, const aclTensor* metadata,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Guarded(ACLNN_ERR_INNER_CREATE_EXECUTOR, [&] {
    return kindling::acl::Prepare(
        kindling::acl::kKLLossGrad, workspaceSize, executor, [&](Executor& prepared) {
          return kindling::acl::PrepareMetadata({.cu_seqlens_q = cuSeqLensQ,
                                                 .cu_seqlens_k = cuSeqLensK,
                                                 .seqused_q = seqUsedQ,
                                                 .seqused_k = seqUsedK,
                                                 .cmp_residual_k = cmpResidualK,
                                                 .layout_q = layoutQ,
                                                 .layout_k = layoutK,
                                                 .mask_mode = maskMode,
                                                 .cmp_ratio = cmpRatio},
                                                {.batch_size = batchSize,
                                                 .max_seqlen_q = maxSeqLenQ,
                                                 .max_seqlen_k = maxSeqLenK,
                                                 .num_heads_q = numHeadsQ,
                                                 .num_heads_k = numHeadsK,
                                                 .head_dim = headDim},
                                                metadata, kindling::kMetadataHeadDim,
                                                kindling::acl::MakeKLRecord, prepared);
        });
  });
}

aclnnStatus aclnnDenseLightningIndexerKLLossGradMetadata(void* workspace, uint64_t workspaceSize,
                                                         aclOpExecutor* executor,
                                                         aclrtStream stream) {
  return Guarded(ACLNN_ERR_INNER, [&] {
    return kindling::acl::Launch(kindling::acl::kKLLossGrad, workspace, workspaceSize, executor,
                                 stream);
  });
}

aclnnStatus aclnnDenseLightningIndexerSoftmaxLseV2MetadataGetWorkspaceSize(
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, int64_t batchSize, int64_t maxSeqLenQ,
    int64_t maxSeqLenK, int64_t numHeadsQ, int64_t numHeadsK, int64_t headDim, char* layoutQ,
    char* layoutK, int64_t maskMode, int64_t cmpRatio, const aclTensor* metadata,
    uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Guarded(ACLNN_ERR_INNER_CREATE_EXECUTOR, [&] {
    return kindling::acl::Prepare(
        kindling::acl::kSoftmaxLse, workspaceSize, executor, [&](Executor& prepared) {
          return kindling::acl::PrepareMetadata(
              {.cu_seqlens_q = cuSeqLensQ,
               .cu_seqlens_k = cuSeqLensK,
               .seqused_q = seqUsedQ,
               .seqused_k = seqUsedK,
               .cmp_residual_k = cmpResidualK,
               .layout_q = layoutQ,
               .layout_k = layoutK,
               .mask_mode = maskMode,
               .cmp_ratio = cmpRatio},
              {.batch_size = batchSize,
               .max_seqlen_q = maxSeqLenQ,
               .max_seqlen_k = maxSeqLenK,
               .num_heads_q = numHeadsQ,
               .num_heads_k = numHeadsK,
               .head_dim = headDim},
              metadata, kindling::kMetadataHeadDim,
              kindling::acl::MakeCompanionRecord<kindling::acl::SplitForLse,
                                                 kindling::kMetadataHeadDim>,
              prepared);
        });
  });
}

aclnnStatus aclnnDenseLightningIndexerSoftmaxLseV2Metadata(void* workspace, uint64_t workspaceSize,
                                                           aclOpExecutor* executor,
                                                           aclrtStream stream) {
  return Guarded(ACLNN_ERR_INNER, [&] {
    return kindling::acl::Launch(kindling::acl::kSoftmaxLse, workspace, workspaceSize, executor,
                                 stream);
  });
}

aclnnStatus aclnnSparseFlashMlaSoftmaxL1NormMetadataGetWorkspaceSize(
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, const aclTensor* topkLength,
    int64_t batchSize, int64_t maxSeqLenQ, int64_t maxSeqLenK, int64_t numHeadsQ, int64_t numHeadsK,
    int64_t headDim, int64_t topk, int64_t cmpRatio, int64_t maskMode, char* layoutQ, char* layoutK,
    const aclTensor* metadata, uint64_t* workspaceSize, aclOpExecutor** executor) {
  return Guarded(ACLNN_ERR_INNER_CREATE_EXECUTOR, [&] {
    return kindling::acl::Prepare(
        kindling::acl::kTeacher, workspaceSize, executor, [&](Executor& prepared) -> Failure {
          if (topkLength != nullptr) {
            return {ACLNN_ERR_PARAM_INVALID,
                    "topk_length: expected null, as only dense attention is supported, got a "
                    "tensor"};
          }
          if (topk != 0) {
            return {ACLNN_ERR_PARAM_INVALID,
                    kindling::Concat("topk: expected 0, as only dense attention is supported, got ",
                                     topk)};
          }
          return kindling::acl::PrepareMetadata(
              {.cu_seqlens_q = cuSeqLensQ,
               .cu_seqlens_k = cuSeqLensK,
               .seqused_q = seqUsedQ,
               .seqused_k = seqUsedK,
               .cmp_residual_k = cmpResidualK,
               .layout_q = layoutQ,
               .layout_k = layoutK,
               .mask_mode = maskMode,
               .cmp_ratio = cmpRatio},
              {.batch_size = batchSize,
               .max_seqlen_q = maxSeqLenQ,
               .max_seqlen_k = maxSeqLenK,
               .num_heads_q = numHeadsQ,
               .num_heads_k = numHeadsK,
               .head_dim = headDim},
              metadata, kindling::acl::kTeacherHeadDim,
              kindling::acl::MakeCompanionRecord<kindling::acl::SplitForTeacher,
                                                 kindling::acl::kTeacherHeadDim>,
              prepared);
        });
  });
}

aclnnStatus aclnnSparseFlashMlaSoftmaxL1NormMetadata(void* workspace, uint64_t workspaceSize,
                                                     aclOpExecutor* executor, aclrtStream stream) {
  return Guarded(ACLNN_ERR_INNER, [&] {
    return kindling::acl::Launch(kindling::acl::kTeacher, workspace, workspaceSize, executor,
                                 stream);
  });
}

}  // extern "C"
