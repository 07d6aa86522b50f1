// Views of caller-owned arrays: a pointer, an element type, a shape and strides.
#ifndef KINDLING_TENSOR_H_
#define KINDLING_TENSOR_H_

#include <array>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace kindling {

enum class DType : int32_t {
  kFloat32 = 0,
  kFloat16 = 1,   // IEEE binary16
  kBFloat16 = 2,  // the upper half of an IEEE binary32
  kFloat64 = 3,   // taken and returned by kindling::reference only
  kInt32 = 4,
  kOther = 5,  // anything else a front door may have been given; every operator refuses it
};

// The largest rank of any tensor of the operators. A view of a higher rank keeps the rank and the
// first kMaxRank extents, so that it can be refused by name.
inline constexpr int32_t kMaxRank = 4;

// A view of `rank` dimensions. A default-made view is absent (rank -1). Strides count elements and
// may be zero or negative in inputs.
template <class VoidPointer>
struct BasicTensor {
  VoidPointer data = nullptr;
  DType dtype = DType::kOther;
  int32_t rank = -1;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};

  BasicTensor() = default;
  BasicTensor(VoidPointer data, DType dtype, int32_t rank, std::array<int64_t, kMaxRank> shape,
              std::array<int64_t, kMaxRank> strides)
      : data(data), dtype(dtype), rank(rank), shape(shape), strides(strides) {}

  // A dense row-major view.
  // Requires: at most kMaxRank extents, none negative, their product below 2^63.
  BasicTensor(VoidPointer data, DType dtype, std::initializer_list<int64_t> extents)
      : data(data), dtype(dtype), rank(static_cast<int32_t>(extents.size())) {
    int32_t axis = 0;
    for (int64_t extent : extents) shape[axis++] = extent;
    int64_t stride = 1;
    for (axis = rank - 1; axis >= 0; --axis) {
      strides[axis] = stride;
      stride *= shape[axis];
    }
  }

  // A writable view is a readable one.
  template <class Other>
    requires(std::is_convertible_v<Other, VoidPointer> && !std::is_same_v<Other, VoidPointer>)
  BasicTensor(const BasicTensor<Other>& other)  // NOLINT(google-explicit-constructor)
      : data(other.data),
        dtype(other.dtype),
        rank(other.rank),
        shape(other.shape),
        strides(other.strides) {}

  // An optional tensor with zero elements counts as absent.
  bool has_elements() const {
    if (rank < 0) return false;
    for (int32_t axis = 0; axis < rank && axis < kMaxRank; ++axis) {
      if (shape[axis] == 0) return false;
    }
    return true;
  }
};

using Tensor = BasicTensor<void*>;
using ConstTensor = BasicTensor<const void*>;

}  // namespace kindling

#endif  // KINDLING_TENSOR_H_
