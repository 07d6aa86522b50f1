// What the tests of the C ABI share: tensors of the test support as aclTensors.
#ifndef KINDLING_TESTS_CAPI_DEVICE_H_
#define KINDLING_TESTS_CAPI_DEVICE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "acl/acl.h"
#include "support/owned_tensor.h"

namespace kindling::test {

inline aclDataType AclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return ACL_FLOAT;
    case DType::kFloat16:
      return ACL_FLOAT16;
    case DType::kBFloat16:
      return ACL_BF16;
    case DType::kFloat64:
      return ACL_DOUBLE;
    case DType::kInt32:
      return ACL_INT32;
    case DType::kOther:
      break;
  }
  return ACL_INT8;
}

// A descriptor of an OwnedTensor, null where that is absent. The tensor must stay where it is.
class AclTensor {
 public:
  explicit AclTensor(const OwnedTensor& tensor) {
    if (!tensor.present()) return;
    const ConstTensor view = tensor.view();
    handle_ =
        aclCreateTensor(view.shape.data(), view.rank, AclTypeOf(view.dtype), view.strides.data(), 0,
                        ACL_FORMAT_ND, view.shape.data(), view.rank, const_cast<void*>(view.data));
    EXPECT_NE(handle_, nullptr);
  }
  // Of any kind.
  AclTensor(aclDataType dtype, const std::vector<int64_t>& dims, void* data)
      : handle_(aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND,
                                dims.data(), dims.size(), data)) {}
  ~AclTensor() { EXPECT_EQ(aclDestroyTensor(handle_), ACLNN_SUCCESS); }
  AclTensor(const AclTensor&) = delete;
  AclTensor& operator=(const AclTensor&) = delete;

  operator const aclTensor*() const { return handle_; }  // NOLINT(google-explicit-constructor)

 private:
  aclTensor* handle_ = nullptr;
};

// What the last failure of this thread said; empty if there was none.
inline std::string RecentMessage() {
  const char* text = aclGetRecentErrMsg();
  return text == nullptr ? std::string() : text;
}

// "q" of "q: expected ..." and of "q[3]: expected ...".
inline std::string ArgumentOfMessage(const std::string& message) {
  return message.substr(0, message.find_first_of(":["));
}

}  // namespace kindling::test

#endif  // KINDLING_TESTS_CAPI_DEVICE_H_
