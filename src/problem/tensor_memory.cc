#include "problem/tensor_memory.h"

#include <cstdint>

#include "base/message.h"
#include "base/row_view.h"

namespace kindling {

Status CheckStrides(std::string_view name, const ConstTensor& tensor) {
  // Elements of at most 8 bytes in up to 4 dims: the distance of any two fits 62 bits.
  constexpr int64_t kMaxReach = int64_t{1} << 57;
  if (!tensor.has_elements()) return Status();
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    const int64_t steps = tensor.shape[axis] - 1;
    if (steps == 0) continue;  // its stride may be anything
    const int64_t limit = kMaxReach / steps;
    if (tensor.strides[axis] > limit || tensor.strides[axis] < -limit) {
      return InvalidArgument(name, ": expected strides that stay within an address space, got ",
                             tensor.strides[axis], " in dim ", axis, " of shape ",
                             ShapeString(tensor));
    }
  }
  return Status();
}

Status CheckData(std::string_view name, const void* data, DType dtype) {
  if (data == nullptr) return InvalidArgument(name, ": expected a data pointer, got null");
  if (reinterpret_cast<uintptr_t>(data) % ElementBytes(dtype) == 0) return Status();
  return InvalidArgument(name,
                         ": expected memory aligned to whole elements, got an address that is not");
}

}  // namespace kindling
