/* The teacher: the main attention's probabilities, averaged over its heads. Dense use only.
 * q, k: bf16, fp16 or fp32, (T1, G, 512) and (T2, 1, 512) in TND; softmaxLse: fp32 (1, T1, G);
 * softmaxL1Norm: fp32 (T1, 1, maxSeqLenK). sparseIndices and topkLength must be null.
 * Phase 1 reads attributes and descriptors, never data, and answers how much workspace phase 2
 * needs; phase 2 enqueues on the stream and owns the executor. Errors: docs/aclnn.md.
 */
#ifndef KINDLING_ACLNNOP_ACLNN_SPARSE_FLASH_MLA_SOFTMAX_L1_NORM_H_
#define KINDLING_ACLNNOP_ACLNN_SPARSE_FLASH_MLA_SOFTMAX_L1_NORM_H_

#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnSparseFlashMlaSoftmaxL1NormGetWorkspaceSize(
    const aclTensor* q, const aclTensor* k, const aclTensor* softmaxLse,
    const aclTensor* sparseIndices, const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK,
    const aclTensor* seqUsedQ, const aclTensor* seqUsedK, const aclTensor* cmpResidualK,
    const aclTensor* topkLength, const aclTensor* metadata, double softmaxScale, int64_t maxSeqLenK,
    int64_t cmpRatio, int64_t maskMode, char* layoutQ, char* layoutK,
    const aclTensor* softmaxL1Norm, uint64_t* workspaceSize, aclOpExecutor** executor);

aclnnStatus aclnnSparseFlashMlaSoftmaxL1Norm(void* workspace, uint64_t workspaceSize,
                                             aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACLNNOP_ACLNN_SPARSE_FLASH_MLA_SOFTMAX_L1_NORM_H_ */
