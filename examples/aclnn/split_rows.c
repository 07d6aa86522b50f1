/* Splits the rows of a packed batch over the cores of a device and prints the record. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"

static void Check(const char* what, int code) {
  if (code == 0) return;
  const char* text = aclGetRecentErrMsg();
  fprintf(stderr, "%s failed with code %d: %s\n", what, code, text ? text : "no text");
  exit(1);
}

/* An int32 vector on the device, filled from `values` unless that is null. */
static aclTensor* MakeVector(const int32_t* values, int64_t count, void** data) {
  const size_t bytes = (size_t)count * sizeof(int32_t);
  Check("aclrtMalloc", aclrtMalloc(data, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
  if (values != NULL) {
    Check("aclrtMemcpy", aclrtMemcpy(*data, bytes, values, bytes, ACL_MEMCPY_HOST_TO_DEVICE));
  }
  return aclCreateTensor(&count, 1, ACL_INT32, NULL, 0, ACL_FORMAT_ND, &count, 1, *data);
}

int main(void) {
  Check("aclInit", aclInit(NULL));
  Check("aclrtSetDevice", aclrtSetDevice(0));
  aclrtStream stream = NULL;
  Check("aclrtCreateStream", aclrtCreateStream(&stream));

  /* One sequence of 16 queries over 4 compressed keys, each of which stands for 4 tokens. */
  const int32_t cu_seqlens_q[] = {0, 16};
  const int32_t cu_seqlens_k[] = {0, 4};
  void* data_q = NULL;
  void* data_k = NULL;
  void* data_metadata = NULL;
  aclTensor* cu_q = MakeVector(cu_seqlens_q, 2, &data_q);
  aclTensor* cu_k = MakeVector(cu_seqlens_k, 2, &data_k);
  aclTensor* metadata = MakeVector(NULL, 64, &data_metadata);

  char layout[] = "TND";
  uint64_t workspace_size = 0;
  aclOpExecutor* executor = NULL;
  Check("phase 1",
        aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
            cu_q, cu_k, NULL, NULL, NULL, /*batchSize=*/0, /*maxSeqLenQ=*/0,
            /*maxSeqLenK=*/0, /*numHeadsQ=*/8, /*numHeadsK=*/1, /*headDim=*/128, layout, layout,
            /*maskMode=*/0, /*cmpRatio=*/4, metadata, &workspace_size, &executor));
  void* workspace = NULL;
  if (workspace_size > 0) {
    Check("aclrtMalloc", aclrtMalloc(&workspace, workspace_size, ACL_MEM_MALLOC_HUGE_FIRST));
  }
  Check("phase 2",
        aclnnDenseLightningIndexerKLLossGradMetadata(workspace, workspace_size, executor, stream));
  Check("aclrtSynchronizeStream", aclrtSynchronizeStream(stream));

  int32_t words[64];
  Check("aclrtMemcpy",
        aclrtMemcpy(words, sizeof(words), data_metadata, sizeof(words), ACL_MEMCPY_DEVICE_TO_HOST));
  printf("device %s\n", aclrtGetSocName());
  printf("rows %d, on the first cores %d each, on %d cores %d each, cores with rows %d\n",
         (int)words[0], (int)words[1], (int)words[3], (int)words[2], (int)words[4]);

  if (workspace != NULL) Check("aclrtFree", aclrtFree(workspace));
  Check("aclDestroyTensor", aclDestroyTensor(cu_q));
  Check("aclDestroyTensor", aclDestroyTensor(cu_k));
  Check("aclDestroyTensor", aclDestroyTensor(metadata));
  Check("aclrtFree", aclrtFree(data_q));
  Check("aclrtFree", aclrtFree(data_k));
  Check("aclrtFree", aclrtFree(data_metadata));
  Check("aclrtDestroyStream", aclrtDestroyStream(stream));
  Check("aclrtResetDevice", aclrtResetDevice(0));
  Check("aclFinalize", aclFinalize());
  return 0;
}
