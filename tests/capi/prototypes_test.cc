// The prototypes, frozen: programs are compiled against them.
#include <gtest/gtest.h>

#include <type_traits>

#include "acl/acl.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2_metadata.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm_metadata.h"

namespace {

using In = const aclTensor*;
using Int = int64_t;
using Text = char*;

#define KINDLING_FREEZE(name, ...) static_assert(std::is_same_v<decltype(name), __VA_ARGS__>)

KINDLING_FREEZE(aclInit, aclError(const char*));
KINDLING_FREEZE(aclFinalize, aclError());
KINDLING_FREEZE(aclrtSetDevice, aclError(int32_t));
KINDLING_FREEZE(aclrtResetDevice, aclError(int32_t));
KINDLING_FREEZE(aclrtGetDevice, aclError(int32_t*));
KINDLING_FREEZE(aclrtGetDeviceCount, aclError(uint32_t*));
KINDLING_FREEZE(aclrtCreateContext, aclError(aclrtContext*, int32_t));
KINDLING_FREEZE(aclrtSetCurrentContext, aclError(aclrtContext));
KINDLING_FREEZE(aclrtDestroyContext, aclError(aclrtContext));
KINDLING_FREEZE(aclrtGetSocName, const char*());
KINDLING_FREEZE(aclrtCtxSetSysParamOpt, aclError(aclSysParamOpt, int64_t));
KINDLING_FREEZE(aclrtCreateStream, aclError(aclrtStream*));
KINDLING_FREEZE(aclrtDestroyStream, aclError(aclrtStream));
KINDLING_FREEZE(aclrtSynchronizeStream, aclError(aclrtStream));
KINDLING_FREEZE(aclrtSynchronizeDevice, aclError());
KINDLING_FREEZE(aclrtMalloc, aclError(void**, size_t, aclrtMemMallocPolicy));
KINDLING_FREEZE(aclrtFree, aclError(void*));
KINDLING_FREEZE(aclrtMallocHost, aclError(void**, size_t));
KINDLING_FREEZE(aclrtFreeHost, aclError(void*));
KINDLING_FREEZE(aclrtMemcpy, aclError(void*, size_t, const void*, size_t, aclrtMemcpyKind));
KINDLING_FREEZE(aclrtMemcpyAsync,
                aclError(void*, size_t, const void*, size_t, aclrtMemcpyKind, aclrtStream));
KINDLING_FREEZE(aclrtMemset, aclError(void*, size_t, int32_t, size_t));
KINDLING_FREEZE(aclGetRecentErrMsg, const char*());
KINDLING_FREEZE(aclCreateTensor, aclTensor*(const int64_t*, uint64_t, aclDataType, const int64_t*,
                                            int64_t, aclFormat, const int64_t*, uint64_t, void*));
KINDLING_FREEZE(aclDestroyTensor, aclnnStatus(const aclTensor*));
KINDLING_FREEZE(aclGetViewShape, aclnnStatus(const aclTensor*, int64_t**, uint64_t*));
KINDLING_FREEZE(aclGetStorageShape, aclnnStatus(const aclTensor*, int64_t**, uint64_t*));
KINDLING_FREEZE(aclGetViewStrides, aclnnStatus(const aclTensor*, int64_t**, uint64_t*));
KINDLING_FREEZE(aclGetViewOffset, aclnnStatus(const aclTensor*, int64_t*));
KINDLING_FREEZE(aclGetFormat, aclnnStatus(const aclTensor*, aclFormat*));
KINDLING_FREEZE(aclGetDataType, aclnnStatus(const aclTensor*, aclDataType*));
KINDLING_FREEZE(aclSetAclOpExecutorRepeatable, aclnnStatus(aclOpExecutor*));
KINDLING_FREEZE(aclDestroyAclOpExecutor, aclnnStatus(aclOpExecutor*));
KINDLING_FREEZE(aclDataTypeSize, size_t(aclDataType));
KINDLING_FREEZE(aclFloatToFloat16, aclFloat16(float));
KINDLING_FREEZE(aclFloat16ToFloat, float(aclFloat16));
KINDLING_FREEZE(aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize,
                aclnnStatus(In, In, In, In, In, In, In, In, In, In, In, Text, Text, Int, Int, In,
                            In, In, In, uint64_t*, aclOpExecutor**));
KINDLING_FREEZE(aclnnDenseLightningIndexerKLLossGrad,
                aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream));
KINDLING_FREEZE(aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize,
                aclnnStatus(In, In, In, In, In, Int, Int, Int, Int, Int, Int, Text, Text, Int, Int,
                            In, uint64_t*, aclOpExecutor**));
KINDLING_FREEZE(aclnnDenseLightningIndexerKLLossGradMetadata,
                aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream));
KINDLING_FREEZE(aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize,
                aclnnStatus(In, In, In, In, In, In, In, In, In, Text, Text, Int, Int, In, uint64_t*,
                            aclOpExecutor**));
KINDLING_FREEZE(aclnnDenseLightningIndexerSoftmaxLseV2,
                aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream));
KINDLING_FREEZE(aclnnDenseLightningIndexerSoftmaxLseV2MetadataGetWorkspaceSize,
                aclnnStatus(In, In, In, In, In, Int, Int, Int, Int, Int, Int, Text, Text, Int, Int,
                            In, uint64_t*, aclOpExecutor**));
KINDLING_FREEZE(aclnnDenseLightningIndexerSoftmaxLseV2Metadata,
                aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream));
KINDLING_FREEZE(aclnnSparseFlashMlaSoftmaxL1NormGetWorkspaceSize,
                aclnnStatus(In, In, In, In, In, In, In, In, In, In, In, double, Int, Int, Int, Text,
                            Text, In, uint64_t*, aclOpExecutor**));
KINDLING_FREEZE(aclnnSparseFlashMlaSoftmaxL1Norm,
                aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream));
KINDLING_FREEZE(aclnnSparseFlashMlaSoftmaxL1NormMetadataGetWorkspaceSize,
                aclnnStatus(In, In, In, In, In, In, Int, Int, Int, Int, Int, Int, Int, Int, Int,
                            Text, Text, In, uint64_t*, aclOpExecutor**));
KINDLING_FREEZE(aclnnSparseFlashMlaSoftmaxL1NormMetadata,
                aclnnStatus(void*, uint64_t, aclOpExecutor*, aclrtStream));

TEST(Prototypes, AreFrozen) {}  // by the compiler

}  // namespace
