/* The headers in C11: numbers that programs are compiled with, sizes that they pass by value, and a
 * reference to every function, so that the linker finds each. */
#include <stddef.h>
#include <stdio.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2_metadata.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm_metadata.h"

_Static_assert(ACL_SUCCESS == 0, "frozen");
_Static_assert(ACL_ERROR_NONE == 0, "frozen");
_Static_assert(ACL_ERROR_INVALID_PARAM == 100000, "frozen");
_Static_assert(ACL_ERROR_UNINITIALIZE == 100001, "frozen");
_Static_assert(ACL_ERROR_REPEAT_INITIALIZE == 100002, "frozen");
_Static_assert(ACL_ERROR_REPEAT_FINALIZE == 100037, "frozen");
_Static_assert(ACL_ERROR_BAD_ALLOC == 200000, "frozen");
_Static_assert(ACL_ERROR_INVALID_DEVICE == 200002, "frozen");
_Static_assert(ACL_ERROR_INVALID_RESOURCE_HANDLE == 200005, "frozen");
_Static_assert(ACL_ERROR_RT_MEMORY_ALLOCATION == 207001, "frozen");
_Static_assert(ACL_ERROR_INTERNAL_ERROR == 500000, "frozen");
_Static_assert(ACL_ERROR_FAILURE == 500001, "frozen");
_Static_assert(ACLNN_SUCCESS == 0, "frozen");
_Static_assert(ACLNN_ERR_PARAM_NULLPTR == 161001, "frozen");
_Static_assert(ACLNN_ERR_PARAM_INVALID == 161002, "frozen");
_Static_assert(ACLNN_ERR_RUNTIME_ERROR == 361001, "frozen");
_Static_assert(ACLNN_ERR_INNER == 561000, "frozen");
_Static_assert(ACLNN_ERR_INNER_INFERSHAPE_ERROR == 561001, "frozen");
_Static_assert(ACLNN_ERR_INNER_TILING_ERROR == 561002, "frozen");
_Static_assert(ACLNN_ERR_INNER_CREATE_EXECUTOR == 561101, "frozen");
_Static_assert(ACLNN_ERR_INNER_NULLPTR == 561103, "frozen");
_Static_assert(ACL_DT_UNDEFINED == -1, "frozen");
_Static_assert(ACL_FLOAT == 0, "frozen");
_Static_assert(ACL_FLOAT16 == 1, "frozen");
_Static_assert(ACL_INT8 == 2, "frozen");
_Static_assert(ACL_INT32 == 3, "frozen");
_Static_assert(ACL_UINT8 == 4, "frozen");
_Static_assert(ACL_INT16 == 6, "frozen");
_Static_assert(ACL_UINT16 == 7, "frozen");
_Static_assert(ACL_UINT32 == 8, "frozen");
_Static_assert(ACL_INT64 == 9, "frozen");
_Static_assert(ACL_UINT64 == 10, "frozen");
_Static_assert(ACL_DOUBLE == 11, "frozen");
_Static_assert(ACL_BOOL == 12, "frozen");
_Static_assert(ACL_STRING == 13, "frozen");
_Static_assert(ACL_COMPLEX64 == 16, "frozen");
_Static_assert(ACL_COMPLEX128 == 17, "frozen");
_Static_assert(ACL_BF16 == 27, "frozen");
_Static_assert(ACL_INT4 == 29, "frozen");
_Static_assert(ACL_FORMAT_UNDEFINED == -1, "frozen");
_Static_assert(ACL_FORMAT_NCHW == 0, "frozen");
_Static_assert(ACL_FORMAT_NHWC == 1, "frozen");
_Static_assert(ACL_FORMAT_ND == 2, "frozen");
_Static_assert(ACL_MEMCPY_HOST_TO_HOST == 0, "frozen");
_Static_assert(ACL_MEMCPY_HOST_TO_DEVICE == 1, "frozen");
_Static_assert(ACL_MEMCPY_DEVICE_TO_HOST == 2, "frozen");
_Static_assert(ACL_MEMCPY_DEVICE_TO_DEVICE == 3, "frozen");
_Static_assert(ACL_MEMCPY_DEFAULT == 4, "frozen");
_Static_assert(ACL_MEM_MALLOC_HUGE_FIRST == 0, "frozen");
_Static_assert(ACL_MEM_MALLOC_HUGE_ONLY == 1, "frozen");
_Static_assert(ACL_MEM_MALLOC_NORMAL_ONLY == 2, "frozen");
_Static_assert(ACL_OPT_DETERMINISTIC == 0, "frozen");
_Static_assert(sizeof(aclDataType) == 4, "frozen");
_Static_assert(sizeof(aclFormat) == 4, "frozen");
_Static_assert(sizeof(aclrtMemcpyKind) == 4, "frozen");
_Static_assert(sizeof(aclrtMemMallocPolicy) == 4, "frozen");
_Static_assert(sizeof(aclSysParamOpt) == 4, "frozen");
_Static_assert(sizeof(aclnnStatus) == 4 && sizeof(aclError) == 4, "frozen");
_Static_assert(sizeof(aclFloat16) == 2, "frozen");
_Static_assert(sizeof(aclrtStream) == sizeof(void*), "frozen");

typedef void (*Function)(void);

static const Function kFunctions[] = {
    (Function)aclCreateTensor,
    (Function)aclDataTypeSize,
    (Function)aclDestroyAclOpExecutor,
    (Function)aclDestroyTensor,
    (Function)aclFinalize,
    (Function)aclFloat16ToFloat,
    (Function)aclFloatToFloat16,
    (Function)aclGetDataType,
    (Function)aclGetFormat,
    (Function)aclGetRecentErrMsg,
    (Function)aclGetStorageShape,
    (Function)aclGetViewOffset,
    (Function)aclGetViewShape,
    (Function)aclGetViewStrides,
    (Function)aclInit,
    (Function)aclSetAclOpExecutorRepeatable,
    (Function)aclnnDenseLightningIndexerKLLossGrad,
    (Function)aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize,
    (Function)aclnnDenseLightningIndexerKLLossGradMetadata,
    (Function)aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize,
    (Function)aclnnDenseLightningIndexerSoftmaxLseV2,
    (Function)aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize,
    (Function)aclnnDenseLightningIndexerSoftmaxLseV2Metadata,
    (Function)aclnnDenseLightningIndexerSoftmaxLseV2MetadataGetWorkspaceSize,
    (Function)aclnnSparseFlashMlaSoftmaxL1Norm,
    (Function)aclnnSparseFlashMlaSoftmaxL1NormGetWorkspaceSize,
    (Function)aclnnSparseFlashMlaSoftmaxL1NormMetadata,
    (Function)aclnnSparseFlashMlaSoftmaxL1NormMetadataGetWorkspaceSize,
    (Function)aclrtCreateContext,
    (Function)aclrtCreateStream,
    (Function)aclrtCtxSetSysParamOpt,
    (Function)aclrtDestroyContext,
    (Function)aclrtDestroyStream,
    (Function)aclrtFree,
    (Function)aclrtFreeHost,
    (Function)aclrtGetDevice,
    (Function)aclrtGetDeviceCount,
    (Function)aclrtGetSocName,
    (Function)aclrtMalloc,
    (Function)aclrtMallocHost,
    (Function)aclrtMemcpy,
    (Function)aclrtMemcpyAsync,
    (Function)aclrtMemset,
    (Function)aclrtResetDevice,
    (Function)aclrtSetCurrentContext,
    (Function)aclrtSetDevice,
    (Function)aclrtSynchronizeDevice,
    (Function)aclrtSynchronizeStream,
};

int main(void) {
  const size_t count = sizeof(kFunctions) / sizeof(kFunctions[0]);
  for (size_t i = 0; i < count; ++i) {
    if (kFunctions[i] == NULL) return 1;
  }
  printf("%zu functions\n", count);
  return 0;
}
