// Handlers of XLA's foreign function interface; there with the CMake option KINDLING_JAX.
#ifndef KINDLING_PYTHON_SRC_JAX_HANDLERS_H_
#define KINDLING_PYTHON_SRC_JAX_HANDLERS_H_

#include <nanobind/nanobind.h>

namespace kindling::python {

namespace nb = nanobind;

// Capsules of the handlers by name, for jax.ffi.register_ffi_target.
nb::dict JaxHandlers();

}  // namespace kindling::python

#endif  // KINDLING_PYTHON_SRC_JAX_HANDLERS_H_
