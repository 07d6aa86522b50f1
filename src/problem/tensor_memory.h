// What a tensor's descriptor tells about its memory, without a look at it.
#ifndef KINDLING_SRC_PROBLEM_TENSOR_MEMORY_H_
#define KINDLING_SRC_PROBLEM_TENSOR_MEMORY_H_

#include <string_view>

#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

// That strides lead from one element to another within an address space, so that no offset between
// two of them overflows. Requires: rank <= kMaxRank, no negative extent.
Status CheckStrides(std::string_view name, const ConstTensor& tensor);

// That `data` is there and aligned to whole elements.
Status CheckData(std::string_view name, const void* data, DType dtype);

}  // namespace kindling

#endif  // KINDLING_SRC_PROBLEM_TENSOR_MEMORY_H_
