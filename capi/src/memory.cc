#include "memory.h"

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "acl/acl.h"
#include "base/message.h"
#include "stream.h"

namespace kindling::acl {
namespace {

constexpr size_t kAlignment = 64;

std::string_view NameOf(MemoryKind kind) {
  return kind == MemoryKind::kDevice ? "aclrtMalloc" : "aclrtMallocHost";
}

}  // namespace

Allocations& Allocations::Instance() {
  static auto* instance = new Allocations();  // programs may free memory while they end
  return *instance;
}

Failure Allocations::Allocate(size_t size, MemoryKind kind, void** pointer) {
  if (pointer == nullptr)
    return {ACL_ERROR_INVALID_PARAM, "pointer: expected an address, got null"};
  *pointer = nullptr;
  if (size == 0) return {ACL_ERROR_INVALID_PARAM, "size: expected >= 1, got 0"};
  const size_t padded = size + (kAlignment - size % kAlignment) % kAlignment;
  void* memory = padded < size ? nullptr : std::aligned_alloc(kAlignment, padded);
  if (memory == nullptr) {
    return {ACL_ERROR_RT_MEMORY_ALLOCATION,
            Concat("size: expected what the host can give, got ", size)};
  }
  try {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(memory)] = {size, kind};
  } catch (...) {
    std::free(memory);
    throw;
  }
  *pointer = memory;
  return {};
}

Failure Allocations::Free(void* pointer, MemoryKind kind) {
  if (pointer == nullptr) return {ACL_ERROR_INVALID_PARAM, "pointer: expected memory, got null"};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks_.end() || found->second.kind != kind) {
      return {ACL_ERROR_INVALID_PARAM,
              Concat("pointer: expected memory of ", NameOf(kind), " that is not yet freed, got ",
                     found == blocks_.end() ? "another address" : "memory of the other kind")};
    }
    blocks_.erase(found);
  }
  std::free(pointer);
  return {};
}

Failure Allocations::CheckRange(const char* name, const void* pointer, size_t size,
                                bool must_be_device, size_t before) const {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard<std::mutex> lock(mutex_);
  auto next = blocks_.upper_bound(address);
  if (next != blocks_.begin()) {
    const auto& [begin, block] = *std::prev(next);
    const size_t offset = address - begin;
    if (offset < block.size) {
      if (must_be_device && block.kind != MemoryKind::kDevice) {
        return {ACL_ERROR_INVALID_PARAM, Concat(name, ": expected device memory, got host memory")};
      }
      if (before > offset) {
        return {
            ACL_ERROR_INVALID_PARAM,
            Concat(name, ": expected at most ", offset,
                   " bytes from the start of the allocation to the first element, got ", before)};
      }
      if (size <= block.size - offset) return {};
      return {ACL_ERROR_INVALID_PARAM,
              Concat(name, ": expected at most ", block.size - offset,
                     " bytes up to the end of the allocation, got ", size)};
    }
  }
  if (must_be_device) {
    return {ACL_ERROR_INVALID_PARAM,
            Concat(name, ": expected memory of aclrtMalloc, got another address")};
  }
  return {};
}

namespace {

Failure CheckCopy(const void* dst, size_t dst_max, const void* src, size_t count,
                  aclrtMemcpyKind kind) {
  const auto invalid = [](std::string message) {
    return Failure{ACL_ERROR_INVALID_PARAM, std::move(message)};
  };
  if (dst == nullptr) return invalid("dst: expected memory, got null");
  if (src == nullptr) return invalid("src: expected memory, got null");
  if (kind < ACL_MEMCPY_HOST_TO_HOST || kind > ACL_MEMCPY_DEFAULT) {
    return invalid(Concat("kind: expected in [0, 4], got ", static_cast<int>(kind)));
  }
  if (count > dst_max) {
    return invalid(Concat("count: expected <= destMax = ", dst_max, ", got ", count));
  }
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  Failure failure = Allocations::Instance().CheckRange("dst", dst, count, to_device);
  if (failure.code == 0) {
    failure = Allocations::Instance().CheckRange("src", src, count, from_device);
  }
  return failure;
}

}  // namespace
}  // namespace kindling::acl

using kindling::acl::Allocations;
using kindling::acl::Failure;
using kindling::acl::Guarded;
using kindling::acl::MemoryKind;

extern "C" {

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy policy) {
  return Guarded(ACL_ERROR_BAD_ALLOC, [&]() -> Failure {
    if (policy < ACL_MEM_MALLOC_HUGE_FIRST || policy > ACL_MEM_MALLOC_NORMAL_ONLY) {
      return {ACL_ERROR_INVALID_PARAM,
              kindling::Concat("policy: expected in [0, 2], got ", static_cast<int>(policy))};
    }
    return Allocations::Instance().Allocate(size, MemoryKind::kDevice, devPtr);
  });
}

aclError aclrtMallocHost(void** hostPtr, size_t size) {
  return Guarded(ACL_ERROR_BAD_ALLOC, [&] {
    return Allocations::Instance().Allocate(size, MemoryKind::kHost, hostPtr);
  });
}

aclError aclrtFree(void* devPtr) {
  return Guarded(ACL_ERROR_FAILURE,
                 [&] { return Allocations::Instance().Free(devPtr, MemoryKind::kDevice); });
}

aclError aclrtFreeHost(void* hostPtr) {
  return Guarded(ACL_ERROR_FAILURE,
                 [&] { return Allocations::Instance().Free(hostPtr, MemoryKind::kHost); });
}

aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count,
                     aclrtMemcpyKind kind) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    Failure failure = kindling::acl::CheckCopy(dst, destMax, src, count, kind);
    if (failure.code == 0) std::memmove(dst, src, count);
    return failure;
  });
}

aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream stream) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    Failure failure = kindling::acl::CheckCopy(dst, destMax, src, count, kind);
    if (failure.code != 0) return failure;
    return kindling::acl::Enqueue(stream, [=]() -> Failure {
      std::memmove(dst, src, count);
      return {};
    });
  });
}

aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count) {
  return Guarded(ACL_ERROR_FAILURE, [&]() -> Failure {
    if (devPtr == nullptr) return {ACL_ERROR_INVALID_PARAM, "devPtr: expected memory, got null"};
    if (count > maxCount) {
      return {ACL_ERROR_INVALID_PARAM,
              kindling::Concat("count: expected <= maxCount = ", maxCount, ", got ", count)};
    }
    Failure failure = Allocations::Instance().CheckRange("devPtr", devPtr, count, false);
    if (failure.code == 0) std::memset(devPtr, value, count);
    return failure;
  });
}

}  // extern "C"
