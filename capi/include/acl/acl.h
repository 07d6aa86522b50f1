/* The runtime of an Ascend device, on the host: initialisation, device 0, contexts, streams,
 * memory.
 *
 * Names, numbers and argument orders are those of Huawei CANN's public documentation (acl API
 * reference), so that a program written for the device compiles, links and runs without it. What
 * each call does here, and where that differs from the device, stands in docs/aclnn.md. C11 and
 * C++.
 */
#ifndef KINDLING_ACL_ACL_H_
#define KINDLING_ACL_ACL_H_

#include <stddef.h>
#include <stdint.h>

#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int aclError;
typedef void* aclrtStream; /* null: the default stream */
typedef void* aclrtContext;

#define ACL_SUCCESS 0
#define ACL_ERROR_NONE 0
#define ACL_ERROR_INVALID_PARAM 100000
#define ACL_ERROR_UNINITIALIZE 100001
#define ACL_ERROR_REPEAT_INITIALIZE 100002
#define ACL_ERROR_REPEAT_FINALIZE 100037
#define ACL_ERROR_BAD_ALLOC 200000
#define ACL_ERROR_INVALID_DEVICE 200002
#define ACL_ERROR_INVALID_RESOURCE_HANDLE 200005
#define ACL_ERROR_RT_MEMORY_ALLOCATION 207001
#define ACL_ERROR_INTERNAL_ERROR 500000
#define ACL_ERROR_FAILURE 500001

typedef enum aclrtMemcpyKind KINDLING_ACL_INT {
  ACL_MEMCPY_HOST_TO_HOST = 0,
  ACL_MEMCPY_HOST_TO_DEVICE = 1,
  ACL_MEMCPY_DEVICE_TO_HOST = 2,
  ACL_MEMCPY_DEVICE_TO_DEVICE = 3,
  ACL_MEMCPY_DEFAULT = 4
} aclrtMemcpyKind;

typedef enum aclrtMemMallocPolicy KINDLING_ACL_INT {
  ACL_MEM_MALLOC_HUGE_FIRST = 0,
  ACL_MEM_MALLOC_HUGE_ONLY = 1,
  ACL_MEM_MALLOC_NORMAL_ONLY = 2
} aclrtMemMallocPolicy;

typedef enum aclSysParamOpt KINDLING_ACL_INT { ACL_OPT_DETERMINISTIC = 0 } aclSysParamOpt;

/* configPath may be null; a file is not read. A second call gives ACL_ERROR_REPEAT_INITIALIZE. */
aclError aclInit(const char* configPath);
/* Waits for all streams, then destroys them and all contexts. Memory and tensors stay. */
aclError aclFinalize(void);

/* Device 0 is the host; others give ACL_ERROR_INVALID_DEVICE. */
aclError aclrtSetDevice(int32_t deviceId);
aclError aclrtResetDevice(int32_t deviceId);
aclError aclrtGetDevice(int32_t* deviceId);
aclError aclrtGetDeviceCount(uint32_t* count);
aclError aclrtCreateContext(aclrtContext* context, int32_t deviceId);
aclError aclrtSetCurrentContext(aclrtContext context);
aclError aclrtDestroyContext(aclrtContext context);
const char* aclrtGetSocName(void);
aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value);

/* In-order queues, each with a thread of its own. After a task has failed, those behind it are
 * dropped until the stream is synchronised, which returns the failure once. */
aclError aclrtCreateStream(aclrtStream* stream);
aclError aclrtDestroyStream(aclrtStream stream);
aclError aclrtSynchronizeStream(aclrtStream stream);
aclError aclrtSynchronizeDevice(void);

/* 64-byte aligned. Size 0 is refused; so are pointers that are no allocation, or none any more. */
aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy);
aclError aclrtFree(void* devPtr);
aclError aclrtMallocHost(void** hostPtr, size_t size);
aclError aclrtFreeHost(void* hostPtr);
aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count,
                     aclrtMemcpyKind kind);
aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream stream);
aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count);

/* What the last call of this thread that failed has to say, or null; asking clears it. The text
 * lives until this thread asks again. */
const char* aclGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif /* KINDLING_ACL_ACL_H_ */
