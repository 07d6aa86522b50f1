// torch as views need it: found where somebody else has imported it, never imported.
#ifndef KINDLING_PYTHON_SRC_TORCH_API_H_
#define KINDLING_PYTHON_SRC_TORCH_API_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <iterator>

#include "base/message.h"
#include "kindling/tensor.h"

namespace kindling::python {

namespace nb = nanobind;

// The functions of DLPack's C exchange API, which a tensor type may have. Source: DLPack 1.3, a
// table that only grows within major version 1.
struct DlpackExchange;

// What a view of a torch tensor looks up, found once and kept for the life of the process as torch
// itself is.
struct TorchApi {
  explicit TorchApi(nb::handle torch);

  // Null while nobody has imported torch.
  static const TorchApi* Known();

  // Describes a plain tensor by one call of a C function. Measured: a view takes 0.5 us in place of
  // 1.1 us by attributes.
  // False, without an error, for a tensor that is not plain and where torch lacks the function
  // (before 2.10). Shape and strides are the tensor's own memory.
  bool Describe(nb::handle object, nb::dlpack::dltensor& out) const;

  // kOther for dtypes that the library does not have.
  DType Dtype(nb::handle dtype) const;

  nb::object tensor, parameter, strided;
  std::array<nb::object, std::size(kDTypes)> dtypes;  // torch's, in the order of kDTypes
  // Attributes.
  nb::object is_cpu, layout, is_nested, requires_grad, is_neg, dtype, shape, stride, data_ptr;

 private:
  const DlpackExchange* exchange_ = nullptr;
};

// torch, if some other module has imported it; else an invalid object.
nb::object ImportedTorch();

// A module that somebody has imported, or an invalid object.
nb::object ImportedModule(const char* name);

}  // namespace kindling::python

#endif  // KINDLING_PYTHON_SRC_TORCH_API_H_
