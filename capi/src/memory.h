// The memory that the C ABI has handed out.
#ifndef KINDLING_CAPI_SRC_MEMORY_H_
#define KINDLING_CAPI_SRC_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "errors.h"

namespace kindling::acl {

enum class MemoryKind { kDevice, kHost };

class Allocations {
 public:
  static Allocations& Instance();

  // 64-byte aligned memory of `size` bytes, its first address in *pointer.
  Failure Allocate(size_t size, MemoryKind kind, void** pointer);
  Failure Free(void* pointer, MemoryKind kind);

  // Whether [pointer - before, pointer + size) may be used. Memory of other makes passes unless it
  // `must_be_device` memory.
  Failure CheckRange(const char* name, const void* pointer, size_t size, bool must_be_device,
                     size_t before = 0) const;

 private:
  struct Block {
    size_t size;
    MemoryKind kind;
  };

  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;  // guarded by mutex_; by first address
};

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_MEMORY_H_
