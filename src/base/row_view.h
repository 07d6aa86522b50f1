// Addresses of rows in a tensor that is either packed (TND) or padded (BSND).
#ifndef KINDLING_SRC_BASE_ROW_VIEW_H_
#define KINDLING_SRC_BASE_ROW_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "kindling/tensor.h"

namespace kindling {

constexpr int64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat16:
    case DType::kBFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kOther:
      break;
  }
  return 4;
}

// A tensor seen as rows of (head, element). Strides count elements. A row is named by its batch and
// by its place in the batch's storage, or by its packed row number; which of the two, the layout
// says.
struct RowView {
  const void* data = nullptr;
  DType dtype = DType::kOther;
  bool packed = false;
  int64_t batch_stride = 0;  // BSND only
  int64_t row_stride = 0;
  int64_t head_stride = 0;
  int64_t element_stride = 1;

  explicit operator bool() const { return data != nullptr; }

  // Elements from the start of the tensor to row `position` of `batch`, whose first row is
  // `storage_row_begin` of the packed tensor.
  int64_t RowOffset(int64_t batch, int64_t storage_row_begin, int64_t position) const {
    return packed ? (storage_row_begin + position) * row_stride
                  : batch * batch_stride + position * row_stride;
  }

  // Address of an element, for reading.
  const void* At(int64_t element) const {
    return static_cast<const std::byte*>(data) + element * ElementBytes(dtype);
  }
  // Address of an element of an output. Requires: the view is that of an output.
  void* OutAt(int64_t element) const { return const_cast<void*>(At(element)); }
};

}  // namespace kindling

#endif  // KINDLING_SRC_BASE_ROW_VIEW_H_
