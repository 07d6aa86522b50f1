#include "array_view.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string_view>
#include <utility>

#include "arguments.h"
#include "base/message.h"
#include "base/row_view.h"
#include "torch_api.h"

namespace kindling::python {
namespace {

constexpr int32_t kDlpackCpu = 1;

// 1 where the dtype is unknown: any address is aligned then.
int64_t ItemBytes(DType dtype) { return dtype == DType::kOther ? 1 : ElementBytes(dtype); }

// The class numpy.ndarray, or null while nobody has imported NumPy: the package does so only where
// it makes an array. Kept for the life of the process, as NumPy itself is.
nb::handle NumpyArrayType() {
  static std::atomic<PyObject*> kept{nullptr};
  if (PyObject* type = kept.load(std::memory_order_acquire)) return type;
  const nb::object numpy = ImportedModule("numpy");
  if (!numpy.is_valid() || !nb::hasattr(numpy, "ndarray")) return nb::handle();
  PyObject* type = nb::object(numpy.attr("ndarray")).release().ptr();
  kept.store(type, std::memory_order_release);
  return type;
}

bool IsInstance(nb::handle object, nb::handle type) {
  if (!type.is_valid()) return false;
  if (object.type().is(type)) return true;
  const int answer = PyObject_IsInstance(object.ptr(), type.ptr());
  if (answer < 0) PyErr_Clear();
  return answer > 0;
}

// Whether an array of NumPy's is one of numpy.ma: its buffer says nothing of the mask.
bool IsMasked(nb::handle array) {
  if (array.type().is(NumpyArrayType())) return false;
  const nb::object masked = ImportedModule("numpy.ma");
  return masked.is_valid() && IsInstance(array, nb::getattr(masked, "MaskedArray", nb::none()));
}

bool IsTrue(const nb::object& object) { return PyObject_IsTrue(object.ptr()) > 0; }

// Element type of a buffer format of one character; kOther for everything else.
DType BufferDtype(std::string_view format, int64_t item_bytes) {
  if (format.size() != 1) return DType::kOther;
  switch (format[0]) {
    case 'f':
      return DType::kFloat32;
    case 'e':
      return DType::kFloat16;
    case 'd':
      return DType::kFloat64;
    case 'i':
    case 'l':
      return item_bytes == 4 ? DType::kInt32 : DType::kOther;
    default:
      return DType::kOther;
  }
}

DType DlpackDtype(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1) return DType::kOther;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      if (dtype.bits == 16) return DType::kFloat16;
      if (dtype.bits == 32) return DType::kFloat32;
      if (dtype.bits == 64) return DType::kFloat64;
      return DType::kOther;
    case Code::Bfloat:
      return dtype.bits == 16 ? DType::kBFloat16 : DType::kOther;
    case Code::Int:
      return dtype.bits == 32 ? DType::kInt32 : DType::kOther;
    default:
      return DType::kOther;
  }
}

// The device type that `object` reports; the CPU's where it reports none.
int64_t DlpackDevice(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return kDlpackCpu;
  const nb::object type = object.attr("__dlpack_device__")()[0];
  return nb::cast<int64_t>(nb::object(type.attr("__index__")()));
}

}  // namespace

ArrayView::~ArrayView() {
  if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
}

Tensor ArrayView::writable_tensor() const {
  if (rank_ >= 0 && access_ != Access::kWrite) {
    Fail(PyExc_ValueError, "a view made for writing, got one made for reading");
  }
  return Tensor(data_, dtype_, rank_, shape_, strides_);
}

void ArrayView::Fail(PyObject* type, const std::string& rest) const {
  has_failed_ = true;
  Raise(type, name_ + ": expected " + rest);
}

void ArrayView::Acquire(nb::handle object, const char* name, Access access, const char* expected) {
  if (object.is_none()) return;
  name_ = name;
  access_ = access;
  expected_ = expected;
  object_ = nb::borrow(object);
  if (IsInstance(object, NumpyArrayType())) {
    kind_ = ArrayKind::kNumpy;
    if (IsMasked(object))
      Fail(PyExc_TypeError,
           "an array without a mask (.filled() makes one), got " + TypeName(object));
    AcquireBuffer(object, access);
  } else if (const TorchApi* torch = TorchApi::Known();
             torch != nullptr && IsInstance(object, torch->tensor)) {
    kind_ = ArrayKind::kTorch;
    AcquireTorch(*torch, object, access);
  } else if (nb::hasattr(object.type(), "__dlpack__")) {
    kind_ = ArrayKind::kDlpack;
    AcquireDlpack(object, access);
  } else if (PyObject_CheckBuffer(object.ptr())) {
    kind_ = ArrayKind::kNumpy;
    AcquireBuffer(object, access);
  } else {
    Fail(PyExc_TypeError, std::string(expected) + ", got " + TypeName(object));
  }
  const uintptr_t address = reinterpret_cast<uintptr_t>(data_);
  if (address % static_cast<uintptr_t>(ItemBytes(dtype_)) != 0 && tensor().has_elements()) {
    Fail(PyExc_ValueError, "memory aligned to whole elements, got an address that is not");
  }
}

void ArrayView::AcquireBuffer(nb::handle object, Access access) {
  bool is_bfloat16 = false;
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_RECORDS_RO) != 0) {
    // NumPy exports only its own dtypes; of the others, bfloat16 is ours to know.
    PyErr_Clear();
    buffer_.obj = nullptr;
    const nb::object dtype = nb::getattr(object, "dtype", nb::none());
    is_bfloat16 = Text(nb::getattr(dtype, "name", nb::none())) == "bfloat16";
    if (!is_bfloat16) {
      Fail(PyExc_TypeError,
           std::string(expected_) + ", got " + TypeName(object) + " of dtype " + Text(dtype));
    }
    object_ = object.attr("view")("uint16");
    if (PyObject_GetBuffer(object_.ptr(), &buffer_, PyBUF_RECORDS_RO) != 0) {
      buffer_.obj = nullptr;
      throw nb::python_error();
    }
  }
  if (access == Access::kWrite && buffer_.readonly) {
    Fail(PyExc_ValueError, "a writable array, got a read-only one");
  }
  std::string_view format = buffer_.format != nullptr ? buffer_.format : "B";
  const int64_t item_bytes = buffer_.itemsize;
  if (item_bytes > 1 && (format.starts_with('>') || format.starts_with('!'))) {
    Fail(PyExc_TypeError, "an array in the machine's byte order, got dtype " + DtypeName());
  }
  if (format.starts_with('<') || format.starts_with('@') || format.starts_with('=')) {
    format.remove_prefix(1);
  }
  dtype_ = is_bfloat16 ? DType::kBFloat16 : BufferDtype(format, item_bytes);
  data_ = buffer_.buf;

  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
  for (int axis = 0; axis < buffer_.ndim && axis < kMaxRank; ++axis) {
    shape[axis] = buffer_.shape[axis];
    const int64_t stride_bytes = buffer_.strides[axis];
    if (dtype_ != DType::kOther && shape[axis] > 1 && stride_bytes % item_bytes != 0) {
      Fail(PyExc_ValueError, "strides of whole elements (" + std::to_string(item_bytes) +
                                 " bytes), got " + std::to_string(stride_bytes) +
                                 " bytes along axis " + std::to_string(axis));
    }
    strides[axis] = item_bytes > 0 ? stride_bytes / item_bytes : 0;
  }
  SetExtents(buffer_.ndim, shape, strides);
}

// The common case at half the time. False, with nothing done, for all others.
bool ArrayView::AcquirePlainTorch(const TorchApi& torch, nb::handle object, Access access) {
  nb::dlpack::dltensor plain;
  if (!torch.Describe(object, plain) || plain.device.device_type != kDlpackCpu ||
      plain.ndim > kMaxRank || plain.strides == nullptr || IsTrue(object.attr(torch.is_neg)())) {
    return false;
  }
  if (access == Access::kWrite && IsTrue(object.attr(torch.requires_grad))) return false;
  SetExtents(plain.ndim, plain.shape, plain.strides);
  dtype_ = DlpackDtype(plain.dtype);
  data_ = plain.data == nullptr ? nullptr : static_cast<std::byte*>(plain.data) + plain.byte_offset;
  return data_ != nullptr || !tensor().has_elements();
}

void ArrayView::AcquireTorch(const TorchApi& torch, nb::handle object, Access access) {
  try {
    nb::object tensor = nb::borrow(object);
    if (AcquirePlainTorch(torch, object, access)) return;
    if (!IsTrue(tensor.attr(torch.is_cpu))) {
      Fail(PyExc_ValueError, "a tensor on the CPU, got one on " + Text(tensor.attr("device")));
    }
    if (IsTrue(tensor.attr(torch.is_nested))) {
      Fail(PyExc_TypeError,
           "a strided tensor, got a nested one: pack it, .values() are the rows of layout TND and "
           ".offsets() their cu_seqlens");
    }
    if (!tensor.attr(torch.layout).is(torch.strided)) {
      Fail(PyExc_TypeError, "a strided tensor, got layout " + Text(tensor.attr("layout")));
    }
    if (access == Access::kWrite && IsTrue(tensor.attr(torch.requires_grad))) {
      Fail(PyExc_ValueError, "a tensor to write that does not require grad, got one that does");
    }
    if (IsTrue(tensor.attr(torch.is_neg)())) {  // a lazy negation: the memory holds other numbers
      if (access == Access::kWrite) Fail(PyExc_ValueError, "a tensor without a pending negation");
      tensor = tensor.attr("resolve_neg")();
      object_ = tensor;
    }
    dtype_ = torch.Dtype(tensor.attr(torch.dtype));
    const auto sizes = nb::cast<nb::tuple>(tensor.attr(torch.shape));
    const auto steps = nb::cast<nb::tuple>(tensor.attr(torch.stride)());
    int64_t shape[kMaxRank] = {};
    int64_t strides[kMaxRank] = {};
    for (size_t axis = 0; axis < sizes.size() && axis < kMaxRank; ++axis) {
      shape[axis] = nb::cast<int64_t>(sizes[axis]);
      strides[axis] = nb::cast<int64_t>(steps[axis]);
    }
    SetExtents(static_cast<int64_t>(sizes.size()), shape, strides);
    // Functional tensors have no address, fake ones the null address.
    data_ = reinterpret_cast<void*>(nb::cast<uintptr_t>(tensor.attr(torch.data_ptr)()));
    if (data_ == nullptr && this->tensor().has_elements()) {
      Fail(PyExc_TypeError, "a tensor with memory, got " + TypeName(object));
    }
  } catch (nb::python_error& error) {
    if (has_failed_ || !error.matches(PyExc_Exception)) throw;
    const std::string reason = Text(error.value());
    Fail(PyExc_TypeError, "a tensor with memory, got " + TypeName(object) + ": " + reason);
  } catch (const nb::cast_error&) {
    Fail(PyExc_TypeError, "a tensor with memory, got " + TypeName(object));
  }
}

void ArrayView::AcquireDlpack(nb::handle object, Access access) {
  int64_t device = kDlpackCpu;
  bool is_read_only = false;
  std::string reason = "it gives no capsule";
  try {
    device = DlpackDevice(object);
    if (device == kDlpackCpu) {
      nb::ndarray<> writable;
      if (access == Access::kWrite && nb::try_cast(object, writable, false)) {
        dlpack_ = nb::ndarray<nb::ro>(writable);
      } else if (nb::try_cast(object, dlpack_, false)) {
        is_read_only = access == Access::kWrite;
      } else {
        object.attr("__dlpack__")();  // raises what nanobind does not pass on
      }
    }
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    reason = Text(error.value());
  } catch (const nb::cast_error&) {
    reason = "its __dlpack_device__ is malformed";
  }
  if (device != kDlpackCpu) {
    Fail(PyExc_ValueError,
         "memory of the CPU (DLPack device type 1), got device type " + std::to_string(device));
  }
  if (!dlpack_.is_valid()) {
    Fail(PyExc_TypeError, std::string(expected_) + ", got " + TypeName(object) + ": " + reason);
  }
  if (is_read_only) Fail(PyExc_ValueError, "a writable array, got a read-only one");
  dtype_ = DlpackDtype(dlpack_.dtype());
  data_ = const_cast<void*>(dlpack_.data());
  SetExtents(static_cast<int64_t>(dlpack_.ndim()), dlpack_.shape_ptr(), dlpack_.stride_ptr());
}

// Strides along axes that hold at most one element are arbitrary in Python; here they become those
// of a dense array, so that density is a question of strides alone.
void ArrayView::SetExtents(int64_t rank, const int64_t* shape, const int64_t* strides) {
  rank_ = static_cast<int32_t>(rank);
  const int32_t num_axes = std::min(rank_, kMaxRank);
  bool is_empty = false;
  for (int32_t axis = 0; axis < num_axes; ++axis) is_empty |= shape[axis] == 0;
  uint64_t dense = 1;
  for (int32_t axis = num_axes - 1; axis >= 0; --axis) {
    shape_[axis] = shape[axis];
    strides_[axis] = is_empty || shape[axis] == 1 ? static_cast<int64_t>(dense) : strides[axis];
    dense *= static_cast<uint64_t>(shape[axis]);
  }
}

void ArrayView::Describe(const char* name, const std::vector<int64_t>& extents, nb::str dtype) {
  name_ = name;
  kind_ = ArrayKind::kNumpy;
  dtype_ = DTypeOfName(dtype.c_str());
  object_ = std::move(dtype);
  const std::vector<int64_t> strides(extents.size(), 0);
  SetExtents(static_cast<int64_t>(extents.size()), extents.data(), strides.data());
  data_ = reinterpret_cast<void*>(uintptr_t{64});  // of no memory, but aligned
}

std::string ArrayView::DtypeName() const {
  if (dtype_ != DType::kOther) return std::string(DTypeName(dtype_));
  std::string text(kUnnamedDType);
  if (object_.is_valid() && PyUnicode_Check(object_.ptr())) {
    text = Text(object_);
  } else if (object_.is_valid() && nb::hasattr(object_, "dtype")) {
    text = Text(object_.attr("dtype"));
  } else if (buffer_.obj != nullptr && buffer_.format != nullptr) {
    text = std::string("buffer format '") + buffer_.format + "'";
  }
  if (text.starts_with("torch.")) text.erase(0, 6);
  return text;
}

}  // namespace kindling::python
