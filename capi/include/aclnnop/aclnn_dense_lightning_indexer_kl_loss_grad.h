/* Gradients of the indexer's KL loss against the teacher, and the student's softmax.
 * q, k: bf16, fp16 or fp32, (T1, N1, 128) and (T2, 1, 128) in TND; w: fp32 (T1, N1);
 * attnSoftmaxL1Norm and softmaxOut: fp32 (T1, 1, keys); softmaxLse: fp32 (1, T1); dq, dk as q, k;
 * dw as w. N1 <= 128. Phase 1 reads attributes and descriptors, never data, and answers how much
 * workspace phase 2 needs; phase 2 enqueues on the stream and owns the executor. Errors:
 * docs/aclnn.md.
 */
#ifndef KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_KL_LOSS_GRAD_H_
#define KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_KL_LOSS_GRAD_H_

#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize(
    const aclTensor* q, const aclTensor* k, const aclTensor* w, const aclTensor* attnSoftmaxL1Norm,
    const aclTensor* softmaxLse, const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK,
    const aclTensor* seqUsedQ, const aclTensor* seqUsedK, const aclTensor* cmpResidualK,
    const aclTensor* metadata, char* layoutQ, char* layoutK, int64_t maskMode, int64_t cmpRatio,
    const aclTensor* dq, const aclTensor* dk, const aclTensor* dw, const aclTensor* softmaxOut,
    uint64_t* workspaceSize, aclOpExecutor** executor);

aclnnStatus aclnnDenseLightningIndexerKLLossGrad(void* workspace, uint64_t workspaceSize,
                                                 aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_KL_LOSS_GRAD_H_ */
