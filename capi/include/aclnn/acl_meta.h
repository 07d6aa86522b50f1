/* Tensor descriptors and executors of the aclnn operators.
 *
 * Source of names and numbers: Huawei CANN's public documentation (aclnn API reference). C11 and
 * C++.
 */
#ifndef KINDLING_ACLNN_ACL_META_H_
#define KINDLING_ACLNN_ACL_META_H_

#include <stddef.h>
#include <stdint.h>

/* Enumerations are ints in C; in C++ they say so, so that any int may be passed and be refused. */
#ifdef __cplusplus
#define KINDLING_ACL_INT : int
#else
#define KINDLING_ACL_INT
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aclTensor aclTensor;
typedef struct aclOpExecutor aclOpExecutor;
typedef int32_t aclnnStatus;
typedef uint16_t aclFloat16; /* the bits of an IEEE binary16 */

#define ACLNN_SUCCESS 0
#define ACLNN_ERR_PARAM_NULLPTR 161001
#define ACLNN_ERR_PARAM_INVALID 161002
#define ACLNN_ERR_RUNTIME_ERROR 361001
#define ACLNN_ERR_INNER 561000
#define ACLNN_ERR_INNER_INFERSHAPE_ERROR 561001
#define ACLNN_ERR_INNER_TILING_ERROR 561002
#define ACLNN_ERR_INNER_CREATE_EXECUTOR 561101
#define ACLNN_ERR_INNER_NULLPTR 561103

typedef enum aclDataType KINDLING_ACL_INT {
  ACL_DT_UNDEFINED = -1,
  ACL_FLOAT = 0,
  ACL_FLOAT16 = 1,
  ACL_INT8 = 2,
  ACL_INT32 = 3,
  ACL_UINT8 = 4,
  ACL_INT16 = 6,
  ACL_UINT16 = 7,
  ACL_UINT32 = 8,
  ACL_INT64 = 9,
  ACL_UINT64 = 10,
  ACL_DOUBLE = 11,
  ACL_BOOL = 12,
  ACL_STRING = 13,
  ACL_COMPLEX64 = 16,
  ACL_COMPLEX128 = 17,
  ACL_BF16 = 27,
  ACL_INT4 = 29
} aclDataType;

typedef enum aclFormat KINDLING_ACL_INT {
  ACL_FORMAT_UNDEFINED = -1,
  ACL_FORMAT_NCHW = 0,
  ACL_FORMAT_NHWC = 1,
  ACL_FORMAT_ND = 2
} aclFormat;

/* Describes memory of the caller's. Dims are copied; strides and offset count elements, null
 * strides mean dense; the data is never freed. Returns null, and a text for aclGetRecentErrMsg,
 * where dims are null, negative, more than 8 or their product does not fit. */
aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t* stride, int64_t offset, aclFormat format,
                           const int64_t* storageDims, uint64_t storageDimsNum, void* tensorData);
/* Null is harmless. */
aclnnStatus aclDestroyTensor(const aclTensor* tensor);

/* Arrays are made with new int64_t[] and are the caller's to delete[]. */
aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum);
aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims,
                               uint64_t* storageDimsNum);
aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue,
                              uint64_t* stridesNum);
aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset);
aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format);
aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType);

/* After phase 1: the executor may run more than once and must then be destroyed. */
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor);

/* Bytes of one element; 0 where it is not whole bytes or unknown. */
size_t aclDataTypeSize(aclDataType dataType);
aclFloat16 aclFloatToFloat16(float value);
float aclFloat16ToFloat(aclFloat16 value);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACLNN_ACL_META_H_ */
