// Tensor descriptors behind aclTensor handles.
#ifndef KINDLING_CAPI_SRC_TENSOR_H_
#define KINDLING_CAPI_SRC_TENSOR_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "aclnn/acl_meta.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling::acl {

struct TensorDescriptor {
  std::vector<int64_t> view_dims;
  std::vector<int64_t> strides;  // elements
  std::vector<int64_t> storage_dims;
  int64_t offset = 0;  // elements
  aclDataType dtype = ACL_DT_UNDEFINED;
  aclFormat format = ACL_FORMAT_UNDEFINED;
  void* data = nullptr;
};

// Null if the handle is none.
std::shared_ptr<const TensorDescriptor> FindTensor(const aclTensor* handle);

// The view of the core for a tensor argument; absent for null.
// Errors: kInvalidArgument where the handle is none, or where the tensor sticks out of an
// allocation of the runtime.
Result<Tensor> ViewOf(std::string_view name, const aclTensor* handle);

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_TENSOR_H_
