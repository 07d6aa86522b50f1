/* Splits the rows of a ragged batch over cores: an int32 record of 64 words (docs/metadata.md).
 * Phase 1 reads attributes and descriptors, never data, and answers how much workspace phase 2
 * needs; phase 2 enqueues on the stream and owns the executor. Errors: docs/aclnn.md.
 */
#ifndef KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_KL_LOSS_GRAD_METADATA_H_
#define KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_KL_LOSS_GRAD_METADATA_H_

#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

aclnnStatus aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
    const aclTensor* cuSeqLensQ, const aclTensor* cuSeqLensK, const aclTensor* seqUsedQ,
    const aclTensor* seqUsedK, const aclTensor* cmpResidualK, int64_t batchSize, int64_t maxSeqLenQ,
    int64_t maxSeqLenK, int64_t numHeadsQ, int64_t numHeadsK, int64_t headDim, char* layoutQ,
    char* layoutK, int64_t maskMode, int64_t cmpRatio, const aclTensor* metadata,
    uint64_t* workspaceSize, aclOpExecutor** executor);

aclnnStatus aclnnDenseLightningIndexerKLLossGradMetadata(void* workspace, uint64_t workspaceSize,
                                                         aclOpExecutor* executor,
                                                         aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACLNNOP_ACLNN_DENSE_LIGHTNING_INDEXER_KL_LOSS_GRAD_METADATA_H_ */
