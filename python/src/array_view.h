// Python arrays as tensors of the library, without copies.
//
// | object                          | memory found by          | kind   |
// | NumPy arrays, buffers           | the buffer protocol      | numpy  |
// | NumPy arrays of ml_dtypes' bf16 | the same, viewed as bits | numpy  |
// | torch CPU tensors               | DLPack in C, attributes  | torch  |
// | anything else with __dlpack__   | DLPack                   | dlpack |
#ifndef KINDLING_PYTHON_SRC_ARRAY_VIEW_H_
#define KINDLING_PYTHON_SRC_ARRAY_VIEW_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "kindling/tensor.h"

namespace kindling::python {

namespace nb = nanobind;

enum class ArrayKind : uint8_t { kAbsent, kNumpy, kTorch, kDlpack };
enum class Access : uint8_t { kRead, kWrite };

// What messages say is expected where an object is no array at all.
inline constexpr const char* kAnyArray = "an array (NumPy, torch on the CPU, DLPack)";
inline constexpr const char* kInt32Array = "an int32 array";

struct TorchApi;

// Holds a Python array's memory for as long as the view lives. All members need the GIL, except
// `tensor`, which stays valid without it.
class ArrayView {
 public:
  ArrayView() = default;
  ~ArrayView();
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  // Views `object`, or nothing if it is None. To be called once.
  // Errors: TypeError for what is no array, has another byte order or no dense memory; ValueError
  //   for memory that is not the CPU's, is read-only where written, or has strides or an address
  //   that are not whole elements.
  void Acquire(nb::handle object, const char* name, Access access = Access::kRead,
               const char* expected = kAnyArray);

  // Views no memory at all: only what an array will be like. `dtype` may be any word.
  void Describe(const char* name, const std::vector<int64_t>& extents, nb::str dtype);

  // Memory of 16-bit integers that stands for bfloat16, which NumPy cannot name by itself.
  void ReadAsBfloat16() { dtype_ = DType::kBFloat16; }

  ArrayKind kind() const { return kind_; }
  ConstTensor tensor() const { return Tensor(data_, dtype_, rank_, shape_, strides_); }
  // Errors: ValueError if it was not acquired with Access::kWrite.
  Tensor writable_tensor() const;
  const std::string& name() const { return name_; }
  // "float32", "int64": the array's own word, also where the library has none.
  std::string DtypeName() const;

 private:
  void AcquireBuffer(nb::handle object, Access access);
  void AcquireTorch(const TorchApi& torch, nb::handle object, Access access);
  bool AcquirePlainTorch(const TorchApi& torch, nb::handle object, Access access);
  void AcquireDlpack(nb::handle object, Access access);
  void SetExtents(int64_t rank, const int64_t* shape, const int64_t* strides);
  [[noreturn]] void Fail(PyObject* type, const std::string& rest) const;

  std::string name_;
  Access access_ = Access::kRead;
  mutable bool has_failed_ = false;  // by Fail
  const char* expected_ = "";
  nb::object object_;  // the array, a temporary that holds its memory, or a dtype's name
  Py_buffer buffer_{};
  nb::ndarray<nb::ro> dlpack_;
  ArrayKind kind_ = ArrayKind::kAbsent;
  void* data_ = nullptr;
  DType dtype_ = DType::kOther;
  int32_t rank_ = -1;
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> strides_{};
};

}  // namespace kindling::python

#endif  // KINDLING_PYTHON_SRC_ARRAY_VIEW_H_
