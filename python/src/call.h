// What every bound call does around the library's: shared arguments in, Status out.
#ifndef KINDLING_PYTHON_SRC_CALL_H_
#define KINDLING_PYTHON_SRC_CALL_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>

#include "array_view.h"
#include "kindling/problem.h"
#include "kindling/status.h"

namespace kindling::python {

// The five length tensors of a call, in the order of SequenceArgs.
struct LengthViews {
  std::array<ArrayView, 5> views;

  // Views the arrays and points `args` at them.
  void Acquire(nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle seqused_q,
               nb::handle seqused_k, nb::handle cmp_residual_k, SequenceArgs& args);
  // Elements of all of them: how much there is to check.
  int64_t num_elements() const;
};

// Throws the Python error of a failed `status`: ValueError, TypeError for a dtype, MemoryError.
// Where the library met a dtype that it has no word for, the view of that argument has one.
void RaiseIfError(const Status& status, const LengthViews& lengths,
                  std::initializer_list<const ArrayView*> others);

template <class Argument>
inline constexpr auto kNullable = nb::arg().none();

// Binds a function of positional arguments, each of which may be None: the function, or the library
// behind it, says what is wrong with that.
template <class Return, class... Arguments>
void DefNullable(nb::module_& module, const char* name, Return (*function)(Arguments...)) {
  module.def(name, function, kNullable<Arguments>...);
}

void BindMetadata(nb::module_& module);
void BindOperators(nb::module_& module);
void BindPlan(nb::module_& module);
void BindRuntime(nb::module_& module);

}  // namespace kindling::python

#endif  // KINDLING_PYTHON_SRC_CALL_H_
