/* Log-sum-exp of the indexer's logits.
 * queryIndex, keyIndex, weight as q, k, w of aclnnDenseLightningIndexerKLLossGrad; softmaxLseOut:
 * fp32 (1, T1) in TND, (B, 1, S1) in BSND. -inf for rows that see no key. Phase 1 reads attributes
 * and descriptors, never data, and answers how much workspace phase 2 needs; phase 2 enqueues on
 * the stream and owns the executor. Errors: docs/aclnn.md.
 */
#ifndef KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_SOFTMAX_LSE_V2_H_
#define KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_SOFTMAX_LSE_V2_H_

#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize(
    const aclTensor* queryIndex, const aclTensor* keyIndex, const aclTensor* weight,
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, const aclTensor* metadata,
    char* layoutQ, char* layoutK, int64_t maskMode, int64_t cmpRatio,
    const aclTensor* softmaxLseOut, uint64_t* workspaceSize, aclOpExecutor** executor);

aclnnStatus aclnnDenseLightningIndexerSoftmaxLseV2(void* workspace, uint64_t workspaceSize,
                                                   aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_SOFTMAX_LSE_V2_H_ */
