// The runtime: initialisation, device, contexts, memory, streams, tensors.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "capi/device.h"

namespace kindling::test {
namespace {

TEST(Runtime, InitAndFinalizeInTheirOrder) {
  EXPECT_EQ(aclFinalize(), ACL_ERROR_UNINITIALIZE);
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_REPEAT_INITIALIZE);
  EXPECT_NE(RecentMessage(), "");
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), ACL_ERROR_REPEAT_FINALIZE);
  EXPECT_EQ(aclInit(nullptr), ACL_SUCCESS);
  EXPECT_EQ(aclFinalize(), ACL_SUCCESS);
}

TEST(Runtime, FinalizeDestroysStreamsAfterTheirWork) {
  ASSERT_EQ(aclInit(nullptr), ACL_SUCCESS);
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  int from = 7;
  int to = 0;
  ASSERT_EQ(aclrtMemcpyAsync(&to, sizeof(to), &from, sizeof(from), ACL_MEMCPY_HOST_TO_HOST, stream),
            ACL_SUCCESS);
  ASSERT_EQ(aclFinalize(), ACL_SUCCESS);
  EXPECT_EQ(to, 7);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_INVALID_RESOURCE_HANDLE);
}

TEST(Runtime, InitReadsTheEnvironment) {
  ASSERT_EQ(setenv("KINDLING_SOC", "Toaster", 1), 0);
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "KINDLING_SOC");
  EXPECT_EQ(aclrtGetSocName(), nullptr);
  ASSERT_EQ(setenv("KINDLING_SOC", "Ascend910B3", 1), 0);
  EXPECT_STREQ(aclrtGetSocName(), "Ascend910B3");
  ASSERT_EQ(unsetenv("KINDLING_SOC"), 0);
  EXPECT_EQ(std::string(aclrtGetSocName()).substr(0, 9), "Ascend950");
  ASSERT_EQ(setenv("KINDLING_NUM_THREADS", "many", 1), 0);
  EXPECT_EQ(aclInit(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "KINDLING_NUM_THREADS");
  ASSERT_EQ(unsetenv("KINDLING_NUM_THREADS"), 0);
}

TEST(Device, ThereIsOne) {
  uint32_t count = 0;
  EXPECT_EQ(aclrtGetDeviceCount(&count), ACL_SUCCESS);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(aclrtGetDeviceCount(nullptr), ACL_ERROR_INVALID_PARAM);
  for (const int32_t device : {-1, 1, 8}) {
    EXPECT_EQ(aclrtSetDevice(device), ACL_ERROR_INVALID_DEVICE);
    EXPECT_EQ(aclrtResetDevice(device), ACL_ERROR_INVALID_DEVICE);
    aclrtContext context = &count;
    EXPECT_EQ(aclrtCreateContext(&context, device), ACL_ERROR_INVALID_DEVICE);
    EXPECT_EQ(context, nullptr);
  }
}

TEST(Device, BelongsToTheThread) {
  std::thread([] {
    int32_t device = 9;
    EXPECT_EQ(aclrtGetDevice(&device), ACL_ERROR_INVALID_DEVICE);
    EXPECT_EQ(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(aclrtResetDevice(0), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetDevice(&device), ACL_ERROR_INVALID_DEVICE);
    EXPECT_EQ(aclrtGetDevice(nullptr), ACL_ERROR_INVALID_PARAM);
  }).join();
}

TEST(Context, LivesUntilItIsDestroyed) {
  aclrtContext context = nullptr;
  ASSERT_EQ(aclrtCreateContext(&context, 0), ACL_SUCCESS);
  std::thread([context] {
    int32_t device = 9;
    EXPECT_EQ(aclrtSetCurrentContext(context), ACL_SUCCESS);
    EXPECT_EQ(aclrtGetDevice(&device), ACL_SUCCESS);
  }).join();
  EXPECT_EQ(aclrtDestroyContext(context), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyContext(context), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtSetCurrentContext(context), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtSetCurrentContext(nullptr), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtCreateContext(nullptr, 0), ACL_ERROR_INVALID_PARAM);
}

TEST(Options, DeterminismIsAlwaysOn) {
  EXPECT_EQ(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 1), ACL_SUCCESS);
  EXPECT_EQ(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 0), ACL_SUCCESS);
  EXPECT_EQ(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 2), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtCtxSetSysParamOpt(static_cast<aclSysParamOpt>(1), 1), ACL_ERROR_INVALID_PARAM);
}

TEST(Messages, BelongToTheThreadAndAreToldOnce) {
  EXPECT_EQ(aclrtFree(nullptr), ACL_ERROR_INVALID_PARAM);
  std::thread([] { EXPECT_EQ(aclGetRecentErrMsg(), nullptr); }).join();
  EXPECT_EQ(RecentMessage(), "pointer: expected memory, got null");
  EXPECT_EQ(aclGetRecentErrMsg(), nullptr);
}

TEST(Memory, IsAligned) {
  for (const size_t size : {1, 63, 64, 65, 1000, 1 << 20}) {
    void* device = nullptr;
    void* host = nullptr;
    ASSERT_EQ(aclrtMalloc(&device, size, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    ASSERT_EQ(aclrtMallocHost(&host, size), ACL_SUCCESS);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(device) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % 64, 0u);
    std::memset(device, 1, size);
    EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
    EXPECT_EQ(aclrtFreeHost(host), ACL_SUCCESS);
  }
}

TEST(Memory, RefusesWhatItCannotGive) {
  void* pointer = &pointer;
  EXPECT_EQ(aclrtMalloc(&pointer, 0, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(aclrtMallocHost(&pointer, 0), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(nullptr, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMallocHost(nullptr, 8), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(&pointer, 8, static_cast<aclrtMemMallocPolicy>(3)),
            ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMalloc(&pointer, SIZE_MAX, ACL_MEM_MALLOC_HUGE_FIRST),
            ACL_ERROR_RT_MEMORY_ALLOCATION);
}

TEST(Memory, RefusesToFreeWhatIsNotItsOwn) {
  int on_the_stack = 0;
  EXPECT_EQ(aclrtFree(&on_the_stack), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFreeHost(&on_the_stack), ACL_ERROR_INVALID_PARAM);
  void* device = nullptr;
  void* host = nullptr;
  ASSERT_EQ(aclrtMalloc(&device, 100, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
  ASSERT_EQ(aclrtMallocHost(&host, 100), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(static_cast<char*>(device) + 1), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFree(host), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFreeHost(device), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFree(device), ACL_SUCCESS);
  EXPECT_EQ(aclrtFree(device), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtFreeHost(host), ACL_SUCCESS);
  EXPECT_EQ(aclrtFreeHost(host), ACL_ERROR_INVALID_PARAM);
}

class Copies : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(aclrtMalloc(&device_, 100, ACL_MEM_MALLOC_HUGE_FIRST), ACL_SUCCESS);
    for (int i = 0; i < 100; ++i) host_[i] = static_cast<char>(i);
  }
  void TearDown() override { EXPECT_EQ(aclrtFree(device_), ACL_SUCCESS); }

  void* device_ = nullptr;
  char host_[100];
};

TEST_F(Copies, ThereAndBack) {
  EXPECT_EQ(aclrtMemcpy(device_, 100, host_, 100, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
  char back[100] = {};
  EXPECT_EQ(aclrtMemcpy(back, 100, device_, 100, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(std::memcmp(back, host_, 100), 0);
  auto* bytes = static_cast<char*>(device_);
  EXPECT_EQ(aclrtMemcpy(bytes + 1, 99, bytes, 99, ACL_MEMCPY_DEVICE_TO_DEVICE), ACL_SUCCESS);
  EXPECT_EQ(bytes[99], host_[98]);
  EXPECT_EQ(aclrtMemset(device_, 100, 5, 50), ACL_SUCCESS);
  EXPECT_EQ(bytes[49], 5);
  EXPECT_EQ(bytes[50], host_[49]);
}

TEST_F(Copies, StayWithinTheirBounds) {
  EXPECT_EQ(aclrtMemcpy(device_, 10, host_, 11, ACL_MEMCPY_HOST_TO_DEVICE),
            ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemset(device_, 10, 0, 11), ACL_ERROR_INVALID_PARAM);
  // Whatever the caller says, an allocation has its size.
  EXPECT_EQ(aclrtMemcpy(device_, 200, host_, 101, ACL_MEMCPY_HOST_TO_DEVICE),
            ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "dst");
  char* end = static_cast<char*>(device_) + 99;
  EXPECT_EQ(aclrtMemcpy(host_, 100, end, 2, ACL_MEMCPY_DEVICE_TO_HOST), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "src");
  EXPECT_EQ(aclrtMemset(end, 2, 0, 2), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpyAsync(device_, 200, host_, 101, ACL_MEMCPY_DEFAULT, nullptr),
            ACL_ERROR_INVALID_PARAM);
}

TEST_F(Copies, KnowTheirSides) {
  char other[100];
  EXPECT_EQ(aclrtMemcpy(other, 100, host_, 100, ACL_MEMCPY_HOST_TO_DEVICE),
            ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy(other, 100, host_, 100, ACL_MEMCPY_DEVICE_TO_HOST),
            ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy(other, 100, host_, 100, ACL_MEMCPY_HOST_TO_HOST), ACL_SUCCESS);
  EXPECT_EQ(aclrtMemcpy(nullptr, 100, host_, 1, ACL_MEMCPY_DEFAULT), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtMemcpy(device_, 100, nullptr, 1, ACL_MEMCPY_DEFAULT), ACL_ERROR_INVALID_PARAM);
  for (const int kind : {-1, 5, 99}) {
    EXPECT_EQ(aclrtMemcpy(device_, 100, host_, 1, static_cast<aclrtMemcpyKind>(kind)),
              ACL_ERROR_INVALID_PARAM);
  }
}

TEST(Streams, RunInOrder) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  constexpr int kSteps = 1000;
  std::vector<int> cells(kSteps + 1, -1);
  cells[0] = 42;
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_EQ(aclrtMemcpyAsync(&cells[i + 1], sizeof(int), &cells[i], sizeof(int),
                               ACL_MEMCPY_HOST_TO_HOST, stream),
              ACL_SUCCESS);
  }
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
  for (const int cell : cells) EXPECT_EQ(cell, 42);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

TEST(Streams, AreReportedWhenThereAreNone) {
  aclrtStream stream = nullptr;
  ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
  EXPECT_EQ(aclrtDestroyStream(stream), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtSynchronizeStream(stream), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  int cell = 0;
  EXPECT_EQ(aclrtMemcpyAsync(&cell, 4, &cell, 4, ACL_MEMCPY_HOST_TO_HOST, stream),
            ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtDestroyStream(nullptr), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtDestroyStream(&cell), ACL_ERROR_INVALID_RESOURCE_HANDLE);
  EXPECT_EQ(aclrtCreateStream(nullptr), ACL_ERROR_INVALID_PARAM);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);  // the default stream
  EXPECT_EQ(aclrtSynchronizeDevice(), ACL_SUCCESS);
}

TEST(Streams, ServeManyThreads) {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  std::atomic<int> sum{0};
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&sum, i] {
      aclrtStream stream = nullptr;
      ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
      int from = i;
      int to = -1;
      for (int repeat = 0; repeat < 50; ++repeat) {
        ASSERT_EQ(aclrtMemcpyAsync(&to, 4, &from, 4, ACL_MEMCPY_HOST_TO_HOST,
                                   repeat % 2 == 0 ? stream : nullptr),
                  ACL_SUCCESS);
        ASSERT_EQ(aclrtSynchronizeStream(repeat % 2 == 0 ? stream : nullptr), ACL_SUCCESS);
      }
      sum += to;
      ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, kThreads * (kThreads - 1) / 2);
}

TEST(Tensors, CopyWhatDescribesThem) {
  std::vector<int64_t> dims = {3, 4};
  std::vector<int64_t> strides = {8, 2};
  std::vector<int64_t> storage = {3, 8};
  float data[24] = {};
  aclTensor* tensor = aclCreateTensor(dims.data(), 2, ACL_FLOAT, strides.data(), 1, ACL_FORMAT_NCHW,
                                      storage.data(), 2, data);
  ASSERT_NE(tensor, nullptr);
  dims[0] = strides[0] = storage[0] = 99;
  int64_t* out = nullptr;
  uint64_t count = 0;
  const auto expect = [&](int64_t first, int64_t second) {
    ASSERT_EQ(count, 2u);
    EXPECT_EQ(out[0], first);
    EXPECT_EQ(out[1], second);
    delete[] out;
  };
  EXPECT_EQ(aclGetViewShape(tensor, &out, &count), ACLNN_SUCCESS);
  expect(3, 4);
  EXPECT_EQ(aclGetViewStrides(tensor, &out, &count), ACLNN_SUCCESS);
  expect(8, 2);
  EXPECT_EQ(aclGetStorageShape(tensor, &out, &count), ACLNN_SUCCESS);
  expect(3, 8);
  int64_t offset = 0;
  EXPECT_EQ(aclGetViewOffset(tensor, &offset), ACLNN_SUCCESS);
  EXPECT_EQ(offset, 1);
  aclFormat format = ACL_FORMAT_UNDEFINED;
  EXPECT_EQ(aclGetFormat(tensor, &format), ACLNN_SUCCESS);
  EXPECT_EQ(format, ACL_FORMAT_NCHW);
  aclDataType dtype = ACL_DT_UNDEFINED;
  EXPECT_EQ(aclGetDataType(tensor, &dtype), ACLNN_SUCCESS);
  EXPECT_EQ(dtype, ACL_FLOAT);

  EXPECT_EQ(aclGetViewShape(tensor, nullptr, &count), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(aclGetViewShape(tensor, &out, nullptr), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(aclGetViewShape(nullptr, &out, &count), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(aclDestroyTensor(tensor), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyTensor(tensor), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(aclGetViewShape(tensor, &out, &count), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(aclDestroyTensor(nullptr), ACLNN_SUCCESS);
}

TEST(Tensors, AreDenseWithoutStrides) {
  const std::vector<int64_t> dims = {2, 3, 4};
  const AclTensor tensor(ACL_INT32, dims, nullptr);
  int64_t* strides = nullptr;
  uint64_t count = 0;
  ASSERT_EQ(aclGetViewStrides(tensor, &strides, &count), ACLNN_SUCCESS);
  ASSERT_EQ(count, 3u);
  EXPECT_EQ(strides[0], 12);
  EXPECT_EQ(strides[1], 4);
  EXPECT_EQ(strides[2], 1);
  delete[] strides;
}

TEST(Tensors, SurviveWrongUse) {
  const int64_t dims[] = {2, 3};
  const auto make = [](const int64_t* view, uint64_t count, aclDataType dtype, int64_t offset) {
    return aclCreateTensor(view, count, dtype, nullptr, offset, ACL_FORMAT_ND, view, count,
                           nullptr);
  };
  EXPECT_EQ(make(nullptr, 2, ACL_FLOAT, 0), nullptr);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "viewDims");
  const int64_t negative[] = {2, -1};
  EXPECT_EQ(make(negative, 2, ACL_FLOAT, 0), nullptr);
  EXPECT_EQ(RecentMessage(), "viewDims[1]: expected >= 0, got -1");
  const int64_t huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_EQ(make(huge, 2, ACL_FLOAT, 0), nullptr);
  const int64_t many[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(make(many, 9, ACL_FLOAT, 0), nullptr);
  EXPECT_EQ(make(dims, 2, static_cast<aclDataType>(99), 0), nullptr);
  EXPECT_EQ(make(dims, 2, ACL_DT_UNDEFINED, 0), nullptr);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "dataType");
  EXPECT_EQ(make(dims, 2, ACL_FLOAT, -1), nullptr);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "offset");
  aclTensor* scalar = make(nullptr, 0, ACL_FLOAT, 0);
  EXPECT_NE(scalar, nullptr);
  EXPECT_EQ(aclDestroyTensor(scalar), ACLNN_SUCCESS);
  int not_a_tensor = 0;
  EXPECT_EQ(aclDestroyTensor(reinterpret_cast<aclTensor*>(&not_a_tensor)), ACLNN_ERR_PARAM_INVALID);
}

TEST(Types, HaveTheirSizes) {
  EXPECT_EQ(aclDataTypeSize(ACL_BOOL), 1u);
  EXPECT_EQ(aclDataTypeSize(ACL_BF16), 2u);
  EXPECT_EQ(aclDataTypeSize(ACL_FLOAT), 4u);
  EXPECT_EQ(aclDataTypeSize(ACL_INT64), 8u);
  EXPECT_EQ(aclDataTypeSize(ACL_COMPLEX128), 16u);
  EXPECT_EQ(aclDataTypeSize(ACL_INT4), 0u);
  EXPECT_EQ(aclDataTypeSize(ACL_DT_UNDEFINED), 0u);
}

TEST(Types, Float16) {
  EXPECT_EQ(aclFloatToFloat16(1.0f), 0x3c00);
  EXPECT_EQ(aclFloatToFloat16(-65504.0f), 0xfbff);
  EXPECT_EQ(aclFloat16ToFloat(0x3555), 0.333251953125f);
  EXPECT_TRUE(std::isnan(aclFloat16ToFloat(0x7e00)));
}

}  // namespace
}  // namespace kindling::test
