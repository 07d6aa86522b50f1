// Heap memory aligned to a cache line.
#ifndef KINDLING_SRC_BASE_ALIGNED_BUFFER_H_
#define KINDLING_SRC_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace kindling {

// Bytes: one cache line, and the widest vector register.
inline constexpr size_t kAlignment = 64;

class AlignedBuffer {
 public:
  AlignedBuffer() = default;

  // `bytes` uninitialised bytes; data() is null if the host has no memory or `bytes` is 0.
  static AlignedBuffer Allocate(size_t bytes) {
    AlignedBuffer buffer;
    if (bytes == 0 || bytes > SIZE_MAX - kAlignment) return buffer;
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    buffer.data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
    buffer.bytes_ = buffer.data_ == nullptr ? 0 : rounded;
    return buffer;
  }

  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace kindling

#endif  // KINDLING_SRC_BASE_ALIGNED_BUFFER_H_
