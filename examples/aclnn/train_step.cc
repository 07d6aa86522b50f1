// One training step of an indexer, as a program for the device writes it: plan, log-sum-exp and
// gradients queued on one stream, one synchronise.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "acl/acl.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2.h"

namespace {

constexpr int64_t kRows = 16;
constexpr int64_t kKeys = 4;
constexpr int64_t kHeads = 8;
constexpr int64_t kWidth = 128;

void Check(const char* what, int code) {
  if (code == 0) return;
  const char* text = aclGetRecentErrMsg();
  std::fprintf(stderr, "%s failed with code %d: %s\n", what, code, text ? text : "no text");
  std::exit(1);
}

// A tensor and its device memory.
template <class T>
class DeviceTensor {
 public:
  DeviceTensor(aclDataType dtype, std::vector<int64_t> dims, const std::vector<T>& values = {}) {
    size_ = std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
    Check("aclrtMalloc", aclrtMalloc(&data_, Bytes(), ACL_MEM_MALLOC_HUGE_FIRST));
    if (!values.empty()) {
      Check("aclrtMemcpy",
            aclrtMemcpy(data_, Bytes(), values.data(), Bytes(), ACL_MEMCPY_HOST_TO_DEVICE));
    }
    tensor_ = aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND,
                              dims.data(), dims.size(), data_);
  }
  ~DeviceTensor() {
    aclDestroyTensor(tensor_);
    aclrtFree(data_);
  }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  const aclTensor* get() const { return tensor_; }
  std::vector<T> ToHost() const {
    std::vector<T> values(size_);
    Check("aclrtMemcpy",
          aclrtMemcpy(values.data(), Bytes(), data_, Bytes(), ACL_MEMCPY_DEVICE_TO_HOST));
    return values;
  }

 private:
  size_t Bytes() const { return size_ * sizeof(T); }

  int64_t size_ = 0;
  void* data_ = nullptr;
  aclTensor* tensor_ = nullptr;
};

// Memory that phase 1 asked for; it lives until the stream has been synchronised.
class Workspace {
 public:
  explicit Workspace(uint64_t size) : size_(size) {
    if (size > 0) Check("aclrtMalloc", aclrtMalloc(&data_, size, ACL_MEM_MALLOC_HUGE_FIRST));
  }
  ~Workspace() {
    if (data_ != nullptr) aclrtFree(data_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  uint64_t size_;
  void* data_ = nullptr;
};

void Step(aclrtStream stream) {
  const DeviceTensor<int32_t> cu_q(ACL_INT32, {2}, {0, kRows});
  const DeviceTensor<int32_t> cu_k(ACL_INT32, {2}, {0, kKeys});
  const DeviceTensor<int32_t> metadata(ACL_INT32, {64});
  const DeviceTensor<aclFloat16> q(
      ACL_FLOAT16, {kRows, kHeads, kWidth},
      std::vector<aclFloat16>(kRows * kHeads * kWidth, aclFloatToFloat16(0.2f)));
  const DeviceTensor<aclFloat16> k(
      ACL_FLOAT16, {kKeys, 1, kWidth},
      std::vector<aclFloat16>(kKeys * kWidth, aclFloatToFloat16(0.1f)));
  const DeviceTensor<float> w(ACL_FLOAT, {kRows, kHeads},
                              std::vector<float>(kRows * kHeads, 0.005f));
  const DeviceTensor<float> p(ACL_FLOAT, {kRows, 1, kKeys},
                              std::vector<float>(kRows * kKeys, 1.0f / kKeys));
  const DeviceTensor<float> lse(ACL_FLOAT, {1, kRows});
  const DeviceTensor<aclFloat16> dq(ACL_FLOAT16, {kRows, kHeads, kWidth});
  const DeviceTensor<aclFloat16> dk(ACL_FLOAT16, {kKeys, 1, kWidth});
  const DeviceTensor<float> dw(ACL_FLOAT, {kRows, kHeads});
  const DeviceTensor<float> softmax(ACL_FLOAT, {kRows, 1, kKeys});
  char layout[] = "TND";
  constexpr int64_t kMaskMode = 3;
  constexpr int64_t kCmpRatio = 1;

  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  Check("metadata, phase 1",
        aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
            cu_q.get(), cu_k.get(), nullptr, nullptr, nullptr, 0, 0, 0, kHeads, 1, kWidth, layout,
            layout, kMaskMode, kCmpRatio, metadata.get(), &size, &executor));
  const Workspace plan_memory(size);
  Check("metadata, phase 2", aclnnDenseLightningIndexerKLLossGradMetadata(
                                 plan_memory.data(), plan_memory.size(), executor, stream));

  Check("lse, phase 1",
        aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize(
            q.get(), k.get(), w.get(), cu_q.get(), cu_k.get(), nullptr, nullptr, nullptr, nullptr,
            layout, layout, kMaskMode, kCmpRatio, lse.get(), &size, &executor));
  const Workspace lse_memory(size);
  Check("lse, phase 2", aclnnDenseLightningIndexerSoftmaxLseV2(lse_memory.data(), lse_memory.size(),
                                                               executor, stream));

  Check("gradients, phase 1",
        aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize(
            q.get(), k.get(), w.get(), p.get(), lse.get(), cu_q.get(), cu_k.get(), nullptr, nullptr,
            nullptr, metadata.get(), layout, layout, kMaskMode, kCmpRatio, dq.get(), dk.get(),
            dw.get(), softmax.get(), &size, &executor));
  const Workspace grad_memory(size);
  Check("gradients, phase 2", aclnnDenseLightningIndexerKLLossGrad(
                                  grad_memory.data(), grad_memory.size(), executor, stream));
  Check("aclrtSynchronizeStream", aclrtSynchronizeStream(stream));

  const std::vector<int32_t> words = metadata.ToHost();
  std::printf("plan: %d rows on %d cores\n", words[0], words[4]);
  const std::vector<float> row_lse = lse.ToHost();
  const std::vector<float> rows = softmax.ToHost();
  for (int64_t row = 0; row < kRows; ++row) {
    float sum = 0;
    for (int64_t key = 0; key < kKeys; ++key) sum += rows[row * kKeys + key];
    if (row == 0 || row >= kRows - kKeys) {
      std::printf("row %2d: lse %8.5f, softmax sums to %.5f\n", static_cast<int>(row), row_lse[row],
                  sum);
    }
  }
}

}  // namespace

int main() {
  Check("aclInit", aclInit(nullptr));
  Check("aclrtSetDevice", aclrtSetDevice(0));
  aclrtContext context = nullptr;
  Check("aclrtCreateContext", aclrtCreateContext(&context, 0));
  aclrtStream stream = nullptr;
  Check("aclrtCreateStream", aclrtCreateStream(&stream));
  Step(stream);
  Check("aclrtDestroyStream", aclrtDestroyStream(stream));
  Check("aclrtDestroyContext", aclrtDestroyContext(context));
  Check("aclrtResetDevice", aclrtResetDevice(0));
  Check("aclFinalize", aclFinalize());
  return 0;
}
