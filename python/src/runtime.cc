#include "kindling/runtime.h"

#include <nanobind/nanobind.h>

#include <string>

#include "arguments.h"
#include "call.h"

namespace kindling::python {
namespace {

void PySetNumThreads(nb::handle num_threads) {
  RaiseIfError(SetNumThreads(AsInt64(num_threads, "num_threads")));
}

// "'portable', 'avx2'": what set_isa takes here.
std::string IsaList() {
  std::string list;
  for (const Isa isa : SupportedIsas()) {
    if (!list.empty()) list += ", ";
    list += "'" + std::string(IsaName(isa)) + "'";
  }
  return list;
}

void PySetIsa(nb::handle isa) {
  const std::string_view wanted = AsText(isa, "isa");
  for (const Isa supported : SupportedIsas()) {
    if (IsaName(supported) != wanted) continue;
    RaiseIfError(SetIsa(supported));
    return;
  }
  Raise(PyExc_ValueError,
        "isa: expected one that this processor has (" + IsaList() + "), got " +
            (wanted.data() != nullptr ? "'" + std::string(wanted) + "'" : "None"));
}

nb::str PyGetIsa() {
  const std::string_view name = IsaName(GetIsa());
  return nb::str(name.data(), name.size());
}

nb::tuple PySupportedIsas() {
  nb::list names;
  for (const Isa isa : SupportedIsas()) {
    const std::string_view name = IsaName(isa);
    names.append(nb::str(name.data(), name.size()));
  }
  return nb::tuple(names);
}

}  // namespace

void BindRuntime(nb::module_& module) {
  module.attr("MAX_THREADS") = kMaxThreads;
  DefNullable(module, "set_num_threads", &PySetNumThreads);
  module.def("get_num_threads", &GetNumThreads);
  DefNullable(module, "set_isa", &PySetIsa);
  module.def("get_isa", &PyGetIsa);
  module.def("supported_isas", &PySupportedIsas);
}

}  // namespace kindling::python
