// Plain Python arguments (numbers, words) to C++ values, and failures to Python errors. Every error
// names the argument: `<argument>: expected <what>, got <what>`.
#ifndef KINDLING_PYTHON_SRC_ARGUMENTS_H_
#define KINDLING_PYTHON_SRC_ARGUMENTS_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kindling::python {

namespace nb = nanobind;

// Throws `type` (PyExc_ValueError, ...) with `message`, which need not be valid UTF-8.
[[noreturn]] void Raise(PyObject* type, std::string_view message);

// "list", "numpy.ndarray": how messages call the type of `object`; "None" for None.
std::string TypeName(nb::handle object);
// str(object); the type's name where that fails.
std::string Text(nb::handle object);

// An integer or anything that stands for one by __index__; a bool does not.
// Errors: TypeError; ValueError where it takes more than 64 bits.
int64_t AsInt64(nb::handle object, const char* name);
// The same, with `fallback` for None.
int64_t AsInt64Or(nb::handle object, const char* name, int64_t fallback);
// A real number. Errors: TypeError.
double AsDouble(nb::handle object, const char* name);
// The text of a str, valid while `object` lives; null for None, so that the library refuses it.
// Errors: TypeError; ValueError for a str that has no UTF-8 form.
std::string_view AsText(nb::handle object, const char* name);

}  // namespace kindling::python

#endif  // KINDLING_PYTHON_SRC_ARGUMENTS_H_
