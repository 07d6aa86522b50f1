#include "support/owned_tensor.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/float16.h"
#include "base/row_view.h"
#include "support/build_kind.h"

#ifdef KINDLING_TEST_UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace kindling::test {
namespace {

constexpr size_t kLineBytes = 64;
// Of tensors: no vector of 16 bytes or more is aligned, while ASan can tell where a guard ends.
constexpr size_t kMisalignment = 8;

bool AllUnwritten(const std::byte* begin, size_t bytes) {
  return std::all_of(begin, begin + bytes,
                     [](std::byte b) { return b == std::byte{GuardedBytes::kUnwritten}; });
}

}  // namespace

GuardedBytes::GuardedBytes(size_t bytes, size_t misalignment)
    : bytes_(bytes), misalignment_(misalignment) {
  block_ = static_cast<std::byte*>(std::aligned_alloc(kLineBytes, BlockBytes()));
  std::memset(block_, kUnwritten, BlockBytes());
  Lock(true);
}

GuardedBytes::GuardedBytes(const GuardedBytes& other) {
  if (other.block_ == nullptr) return;
  *this = GuardedBytes(other.bytes_, other.misalignment_);
  std::memcpy(data(), other.data(), bytes_);
}

GuardedBytes::GuardedBytes(GuardedBytes&& other) noexcept
    : block_(std::exchange(other.block_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      misalignment_(other.misalignment_) {}

GuardedBytes& GuardedBytes::operator=(GuardedBytes other) noexcept {
  std::swap(block_, other.block_);
  std::swap(bytes_, other.bytes_);
  std::swap(misalignment_, other.misalignment_);
  return *this;
}

GuardedBytes::~GuardedBytes() {
  if (block_ == nullptr) return;
  Lock(false);
  std::free(block_);
}

size_t GuardedBytes::BlockBytes() const {
  const size_t used = 2 * kGuardBytes + misalignment_ + bytes_;
  return (used + kLineBytes - 1) / kLineBytes * kLineBytes;
}

void GuardedBytes::Lock([[maybe_unused]] bool locked) const {
#ifdef KINDLING_TEST_UNDER_ASAN
  const std::byte* end = data() + bytes_;
  const size_t bytes_after = block_ + BlockBytes() - end;
  if (locked) {
    ASAN_POISON_MEMORY_REGION(block_, kGuardBytes + misalignment_);
    ASAN_POISON_MEMORY_REGION(end, bytes_after);
  } else {
    ASAN_UNPOISON_MEMORY_REGION(block_, BlockBytes());
  }
#endif
}

bool GuardedBytes::GuardsIntact() const {
  if (block_ == nullptr) return true;
  Lock(false);
  const std::byte* end = data() + bytes_;
  const bool intact = AllUnwritten(block_, kGuardBytes + misalignment_) &&
                      AllUnwritten(end, block_ + BlockBytes() - end);
  Lock(true);
  return intact;
}

OwnedTensor::OwnedTensor(DType dtype, std::vector<int64_t> shape, Spread spread)
    : present_(true),
      dtype_(dtype),
      dense_(spread == Spread::kDense),
      shape_(std::move(shape)),
      strides_(shape_.size()) {
  constexpr int64_t kGap = 3;
  std::vector<int32_t> inner_first(shape_.size());
  std::iota(inner_first.begin(), inner_first.end(), 0);
  if (spread != Spread::kTransposed) std::reverse(inner_first.begin(), inner_first.end());
  size_ = 1;
  int64_t reach = 0;  // of the last element from the first
  int64_t stride = 1;
  for (const int32_t axis : inner_first) {
    strides_[axis] = stride;
    size_ *= shape_[axis];
    reach += std::max<int64_t>(shape_[axis] - 1, 0) * stride;
    stride *= shape_[axis] + (dense_ ? 0 : kGap);
  }
  if (spread == Spread::kReversed) {
    for (int64_t& step : strides_) step = -step;
    origin_ = reach;
  }
  const auto element_bytes = static_cast<size_t>(ElementBytes(dtype));
  memory_ = GuardedBytes(size_ == 0 ? 0 : (reach + 1) * element_bytes, kMisalignment);
}

OwnedTensor OwnedTensor::Int32(const std::vector<int64_t>& values) {
  OwnedTensor tensor(DType::kInt32, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) {
    tensor.Set(static_cast<int64_t>(i), static_cast<double>(values[i]));
  }
  return tensor;
}

Tensor OwnedTensor::view() {
  Tensor tensor;
  if (!present_) return tensor;
  tensor.data = memory_.data() + origin_ * ElementBytes(dtype_);
  tensor.dtype = dtype_;
  tensor.rank = rank();
  std::copy(shape_.begin(), shape_.end(), tensor.shape.begin());
  std::copy(strides_.begin(), strides_.end(), tensor.strides.begin());
  return tensor;
}

ConstTensor OwnedTensor::view() const { return const_cast<OwnedTensor*>(this)->view(); }

int64_t OwnedTensor::Offset(int64_t index) const {
  if (dense_) return index;
  int64_t offset = origin_;
  for (int32_t axis = rank() - 1; axis >= 0; --axis) {
    offset += index % shape_[axis] * strides_[axis];
    index /= shape_[axis];
  }
  return offset;
}

uint64_t OwnedTensor::Bits(int64_t index) const {
  static_assert(std::endian::native == std::endian::little);
  const int64_t bytes = ElementBytes(dtype_);
  uint64_t bits = 0;
  std::memcpy(&bits, memory_.data() + Offset(index) * bytes, bytes);
  return bits;
}

double OwnedTensor::Get(int64_t index) const {
  const uint64_t bits = Bits(index);
  switch (dtype_) {
    case DType::kFloat32:
      return std::bit_cast<float>(static_cast<uint32_t>(bits));
    case DType::kFloat16:
      return Fp32FromFp16(static_cast<uint16_t>(bits));
    case DType::kBFloat16:
      return Fp32FromBf16(static_cast<uint16_t>(bits));
    case DType::kFloat64:
      return std::bit_cast<double>(bits);
    case DType::kInt32:
    case DType::kOther:
      break;
  }
  return static_cast<int32_t>(bits);
}

void OwnedTensor::Set(int64_t index, double value) {
  uint64_t bits = 0;
  switch (dtype_) {
    case DType::kFloat32:
      bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      break;
    case DType::kFloat16:
      bits = Fp16FromFp32(static_cast<float>(value));
      break;
    case DType::kBFloat16:
      bits = Bf16FromFp32(static_cast<float>(value));
      break;
    case DType::kFloat64:
      bits = std::bit_cast<uint64_t>(value);
      break;
    case DType::kInt32:
    case DType::kOther:
      bits = static_cast<uint32_t>(static_cast<int32_t>(value));
      break;
  }
  const int64_t bytes = ElementBytes(dtype_);
  std::memcpy(memory_.data() + Offset(index) * bytes, &bits, bytes);
}

void OwnedTensor::Fill(double value) {
  for (int64_t i = 0; i < size_; ++i) Set(i, value);
}

bool OwnedTensor::Unwritten(int64_t index) const {
  const int64_t bits = 8 * ElementBytes(dtype_);
  return Bits(index) == (~uint64_t{0} >> (64 - bits));
}

bool OwnedTensor::SameMemory(const OwnedTensor& other) const {
  return memory_.size() == other.memory_.size() && strides_ == other.strides_ &&
         (memory_.size() == 0 ||
          std::memcmp(memory_.data(), other.memory_.data(), memory_.size()) == 0);
}

OwnedTensor OwnedTensor::ConvertedTo(DType dtype) const {
  if (!present_) return OwnedTensor();
  OwnedTensor out(dtype, shape_);
  for (int64_t i = 0; i < size_; ++i) out.Set(i, Get(i));
  return out;
}

OwnedTensor OwnedTensor::SpreadAs(Spread spread) const {
  if (!present_) return OwnedTensor();
  OwnedTensor out(dtype_, shape_, spread);
  for (int64_t i = 0; i < size_; ++i) out.Set(i, Get(i));
  return out;
}

std::string OwnedTensor::IndexString(int64_t index) const {
  std::string out = "]";
  for (int32_t axis = rank() - 1; axis >= 0; --axis) {
    out = (axis > 0 ? ", " : "[") + std::to_string(index % shape_[axis]) + out;
    index /= shape_[axis];
  }
  return rank() == 0 ? "[]" : out;
}

}  // namespace kindling::test
