#include "tensor.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "base/float16.h"
#include "base/message.h"
#include "errors.h"
#include "handles.h"
#include "memory.h"

namespace kindling::acl {
namespace {

constexpr uint64_t kMaxDims = 8;

HandleTable<const TensorDescriptor>& Table() {
  static auto* table = new HandleTable<const TensorDescriptor>(3);
  return *table;
}

DType DTypeOf(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT:
      return DType::kFloat32;
    case ACL_FLOAT16:
      return DType::kFloat16;
    case ACL_BF16:
      return DType::kBFloat16;
    case ACL_DOUBLE:
      return DType::kFloat64;
    case ACL_INT32:
      return DType::kInt32;
    default:
      return DType::kOther;
  }
}

// Copies dims and checks that there may be so many elements.
Status ReadDims(std::string_view name, const int64_t* dims, uint64_t count,
                std::vector<int64_t>& out) {
  if (count > kMaxDims) {
    return InvalidArgument(name, ": expected at most ", kMaxDims, " dims, got ", count);
  }
  if (dims == nullptr && count > 0) {
    return InvalidArgument(name, ": expected ", count, " dims, got null");
  }
  int64_t size = 1;
  for (uint64_t axis = 0; axis < count; ++axis) {
    if (dims[axis] < 0) {
      return InvalidArgument(name, "[", axis, "]: expected >= 0, got ", dims[axis]);
    }
    size = SaturatingMul(size, std::max<int64_t>(dims[axis], 1));
  }
  if (size > kInt64Max / 16) {
    return InvalidArgument(name, ": expected fewer than 2^59 elements, got more");
  }
  out.assign(dims, dims + count);
  return Status();
}

Result<TensorDescriptor> Describe(const int64_t* view_dims, uint64_t num_view_dims,
                                  aclDataType dtype, const int64_t* strides, int64_t offset,
                                  aclFormat format, const int64_t* storage_dims,
                                  uint64_t num_storage_dims, void* data) {
  TensorDescriptor tensor;
  KINDLING_RETURN_IF_ERROR(ReadDims("viewDims", view_dims, num_view_dims, tensor.view_dims));
  KINDLING_RETURN_IF_ERROR(
      ReadDims("storageDims", storage_dims, num_storage_dims, tensor.storage_dims));
  if (aclDataTypeSize(dtype) == 0) {
    return InvalidArgument("dataType: expected one of whole bytes, got ", static_cast<int>(dtype));
  }
  if (offset < 0 || offset > kInt64Max / 16) {
    return InvalidArgument("offset: expected in [0, 2^59), got ", offset);
  }
  if (strides != nullptr) {
    tensor.strides.assign(strides, strides + num_view_dims);
  } else {
    tensor.strides.resize(num_view_dims);
    int64_t stride = 1;
    for (size_t axis = num_view_dims; axis-- > 0;) {
      tensor.strides[axis] = stride;
      stride *= std::max<int64_t>(tensor.view_dims[axis], 1);
    }
  }
  tensor.offset = offset;
  tensor.dtype = dtype;
  tensor.format = format;
  tensor.data = data;
  return tensor;
}

// A tensor with its first element within an allocation of the runtime must lie in it.
Status CheckExtent(std::string_view name, const TensorDescriptor& tensor, const Tensor& view) {
  int64_t before = 0, last = 0;  // elements from the first one to the lowest and the highest
  for (size_t axis = 0; axis < tensor.view_dims.size(); ++axis) {
    const int64_t steps = tensor.view_dims[axis] - 1;
    if (steps < 0) return Status();  // no elements
    const int64_t stride = tensor.strides[axis];
    int64_t& end = stride < 0 ? before : last;
    const int64_t step = stride < 0 ? -std::max(stride, -kInt64Max) : stride;
    end = SaturatingAdd(end, SaturatingMul(steps, step));
  }
  const auto element_bytes = static_cast<int64_t>(aclDataTypeSize(tensor.dtype));
  const int64_t bytes = SaturatingMul(SaturatingAdd(last, 1), element_bytes);
  const std::string data(name);
  const Failure failure = Allocations::Instance().CheckRange(data.c_str(), view.data, bytes, false,
                                                             SaturatingMul(before, element_bytes));
  if (failure.code == 0) return Status();
  return MakeFailure(StatusCode::kInvalidArgument, failure.message);
}

template <class Function>
int32_t WithTensor(const aclTensor* handle, const void* out, Function function) {
  return Guarded(ACLNN_ERR_INNER, [&]() -> Failure {
    if (handle == nullptr) return {ACLNN_ERR_PARAM_NULLPTR, "tensor: expected one, got null"};
    if (out == nullptr) return {ACLNN_ERR_PARAM_NULLPTR, "out: expected an address, got null"};
    const std::shared_ptr<const TensorDescriptor> tensor = FindTensor(handle);
    if (tensor == nullptr) {
      return {ACLNN_ERR_PARAM_INVALID,
              "tensor: expected one of aclCreateTensor that exists, got another address"};
    }
    function(*tensor);
    return {};
  });
}

int32_t CopyDims(const aclTensor* handle, int64_t** out, uint64_t* count,
                 std::vector<int64_t> TensorDescriptor::* dims) {
  return WithTensor(handle, count == nullptr ? nullptr : out, [&](const TensorDescriptor& tensor) {
    auto* copy = new int64_t[(tensor.*dims).size()];
    std::copy((tensor.*dims).begin(), (tensor.*dims).end(), copy);
    *out = copy;
    *count = (tensor.*dims).size();
  });
}

}  // namespace

std::shared_ptr<const TensorDescriptor> FindTensor(const aclTensor* handle) {
  return Table().Find(handle);
}

Result<Tensor> ViewOf(std::string_view name, const aclTensor* handle) {
  if (handle == nullptr) return Tensor();
  const std::shared_ptr<const TensorDescriptor> tensor = FindTensor(handle);
  if (tensor == nullptr) {
    return InvalidArgument(name,
                           ": expected a tensor of aclCreateTensor that exists, got another "
                           "address");
  }
  Tensor view;
  view.rank = static_cast<int32_t>(tensor->view_dims.size());
  view.dtype = DTypeOf(tensor->dtype);
  const size_t num_kept = std::min<size_t>(tensor->view_dims.size(), kMaxRank);
  std::copy_n(tensor->view_dims.begin(), num_kept, view.shape.begin());
  std::copy_n(tensor->strides.begin(), num_kept, view.strides.begin());
  if (tensor->data != nullptr) {
    const auto element_bytes = static_cast<int64_t>(aclDataTypeSize(tensor->dtype));
    view.data = static_cast<std::byte*>(tensor->data) + tensor->offset * element_bytes;
    KINDLING_RETURN_IF_ERROR(CheckExtent(name, *tensor, view));
  }
  return view;
}

}  // namespace kindling::acl

using kindling::acl::Failure;
using kindling::acl::Guarded;
using kindling::acl::TensorDescriptor;

extern "C" {

aclTensor* aclCreateTensor(const int64_t* viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t* stride, int64_t offset, aclFormat format,
                           const int64_t* storageDims, uint64_t storageDimsNum, void* tensorData) {
  void* handle = nullptr;
  static_cast<void>(Guarded(ACLNN_ERR_INNER, [&]() -> Failure {
    auto tensor = kindling::acl::Describe(viewDims, viewDimsNum, dataType, stride, offset, format,
                                          storageDims, storageDimsNum, tensorData);
    if (!tensor.ok()) return kindling::acl::FailureOf(tensor.status());
    handle = kindling::acl::Table().Add(
        std::make_shared<const TensorDescriptor>(std::move(tensor).value()));
    return {};
  }));
  return static_cast<aclTensor*>(handle);
}

aclnnStatus aclDestroyTensor(const aclTensor* tensor) {
  return Guarded(ACLNN_ERR_INNER, [&]() -> Failure {
    if (tensor == nullptr || kindling::acl::Table().Take(tensor) != nullptr) return {};
    return {ACLNN_ERR_PARAM_INVALID,
            "tensor: expected one of aclCreateTensor that exists, got another address"};
  });
}

aclnnStatus aclGetViewShape(const aclTensor* tensor, int64_t** viewDims, uint64_t* viewDimsNum) {
  return kindling::acl::CopyDims(tensor, viewDims, viewDimsNum, &TensorDescriptor::view_dims);
}

aclnnStatus aclGetStorageShape(const aclTensor* tensor, int64_t** storageDims,
                               uint64_t* storageDimsNum) {
  return kindling::acl::CopyDims(tensor, storageDims, storageDimsNum,
                                 &TensorDescriptor::storage_dims);
}

aclnnStatus aclGetViewStrides(const aclTensor* tensor, int64_t** stridesValue,
                              uint64_t* stridesNum) {
  return kindling::acl::CopyDims(tensor, stridesValue, stridesNum, &TensorDescriptor::strides);
}

aclnnStatus aclGetViewOffset(const aclTensor* tensor, int64_t* offset) {
  return kindling::acl::WithTensor(tensor, offset,
                                   [&](const TensorDescriptor& found) { *offset = found.offset; });
}

aclnnStatus aclGetFormat(const aclTensor* tensor, aclFormat* format) {
  return kindling::acl::WithTensor(tensor, format,
                                   [&](const TensorDescriptor& found) { *format = found.format; });
}

aclnnStatus aclGetDataType(const aclTensor* tensor, aclDataType* dataType) {
  return kindling::acl::WithTensor(tensor, dataType,
                                   [&](const TensorDescriptor& found) { *dataType = found.dtype; });
}

size_t aclDataTypeSize(aclDataType dataType) {
  switch (dataType) {
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL:
      return 1;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16:
      return 2;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32:
      return 4;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE:
    case ACL_COMPLEX64:
      return 8;
    case ACL_COMPLEX128:
      return 16;
    case ACL_DT_UNDEFINED:
    case ACL_STRING:
    case ACL_INT4:
      break;
  }
  return 0;
}

aclFloat16 aclFloatToFloat16(float value) { return kindling::Fp16FromFp32(value); }

float aclFloat16ToFloat(aclFloat16 value) { return kindling::Fp32FromFp16(value); }

}  // extern "C"
