/* The record of aclnnSparseFlashMlaSoftmaxL1Norm: an int32 tensor of 64 words, of its own kind.
 * Phase 1 reads attributes and descriptors, never data, and answers how much workspace phase 2
 * needs; phase 2 enqueues on the stream and owns the executor. Errors: docs/aclnn.md.
 */
#ifndef KINDLING_ACLNNOP_ACLNN_SPARSE_FLASH_MLA_SOFTMAX_L1_NORM_METADATA_H_
#define KINDLING_ACLNNOP_ACLNN_SPARSE_FLASH_MLA_SOFTMAX_L1_NORM_METADATA_H_

#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnSparseFlashMlaSoftmaxL1NormMetadataGetWorkspaceSize(
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, const aclTensor* topkLength,
    int64_t batchSize, int64_t maxSeqLenQ, int64_t maxSeqLenK, int64_t numHeadsQ, int64_t numHeadsK,
    int64_t headDim, int64_t topk, int64_t cmpRatio, int64_t maskMode, char* layoutQ, char* layoutK,
    const aclTensor* metadata, uint64_t* workspaceSize, aclOpExecutor** executor);

aclnnStatus aclnnSparseFlashMlaSoftmaxL1NormMetadata(void* workspace, uint64_t workspaceSize,
                                                     aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACLNNOP_ACLNN_SPARSE_FLASH_MLA_SOFTMAX_L1_NORM_METADATA_H_ */
