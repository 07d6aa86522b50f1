// Tensors that own their memory and notice when somebody else writes to it.
#ifndef KINDLING_TESTS_SUPPORT_OWNED_TENSOR_H_
#define KINDLING_TESTS_SUPPORT_OWNED_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kindling/tensor.h"

namespace kindling::test {

// Bytes between two guards. Everything, guards included, starts as 0xff: that is NaN in every
// floating type and -1 in int32, so what nobody wrote is recognised wherever it lies. Under ASan
// even a read of a guard ends the program. The bytes begin `misalignment` past a cache line.
class GuardedBytes {
 public:
  static constexpr size_t kGuardBytes = 256;
  static constexpr uint8_t kUnwritten = 0xff;

  GuardedBytes() = default;
  GuardedBytes(size_t bytes, size_t misalignment);
  GuardedBytes(const GuardedBytes& other);
  GuardedBytes(GuardedBytes&& other) noexcept;
  GuardedBytes& operator=(GuardedBytes other) noexcept;
  ~GuardedBytes();

  std::byte* data() { return block_ + kGuardBytes + misalignment_; }
  const std::byte* data() const { return block_ + kGuardBytes + misalignment_; }
  size_t size() const { return bytes_; }
  bool GuardsIntact() const;

 private:
  size_t BlockBytes() const;
  // Makes the guards readable, or not.
  void Lock(bool locked) const;

  std::byte* block_ = nullptr;
  size_t bytes_ = 0;
  size_t misalignment_ = 0;
};

// How the elements of a tensor lie in memory.
enum class Spread {
  kDense,
  kGaps,        // row-major with unused elements behind every innermost row and outer slice
  kReversed,    // as kGaps, every stride negative
  kTransposed,  // the first dim innermost, with gaps: the last dim's stride is large
};

// Elements are named by their row-major index, whatever their place in memory.
class OwnedTensor {
 public:
  OwnedTensor() = default;  // absent
  OwnedTensor(DType dtype, std::vector<int64_t> shape, Spread spread = Spread::kDense);
  static OwnedTensor Int32(const std::vector<int64_t>& values);

  bool present() const { return rank() >= 0; }
  int32_t rank() const { return present_ ? static_cast<int32_t>(shape_.size()) : -1; }
  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size() const { return size_; }

  Tensor view();
  ConstTensor view() const;

  double Get(int64_t index) const;
  // Rounds to the dtype, to nearest even.
  void Set(int64_t index, double value);
  void Fill(double value);
  // The element's bits, in the low end of the word.
  uint64_t Bits(int64_t index) const;

  // Whether the element still is what a new tensor holds.
  bool Unwritten(int64_t index) const;
  bool GuardsIntact() const { return memory_.GuardsIntact(); }
  // Whether two tensors of one shape and spread agree in every byte, gaps included.
  bool SameMemory(const OwnedTensor& other) const;

  // The same values, dense, in another dtype. Requires: the values fit.
  OwnedTensor ConvertedTo(DType dtype) const;
  // The same values and dtype, another spread.
  OwnedTensor SpreadAs(Spread spread) const;

  // "[2, 0, 5]".
  std::string IndexString(int64_t index) const;

 private:
  int64_t Offset(int64_t index) const;

  bool present_ = false;
  DType dtype_ = DType::kOther;
  bool dense_ = true;
  std::vector<int64_t> shape_;
  std::vector<int64_t> strides_;
  int64_t size_ = 0;
  int64_t origin_ = 0;  // of element 0, in elements from the start of the memory
  GuardedBytes memory_;
};

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_OWNED_TENSOR_H_
