// kindling._core: the library's calls on Python arrays. The package `kindling` is its only user.
#include <nanobind/nanobind.h>

#include "call.h"
#include "kindling/version.h"
#ifdef KINDLING_JAX
#include "jax_handlers.h"
#endif

#define KINDLING_STRING_(x) #x
#define KINDLING_STRING(x) KINDLING_STRING_(x)

NB_MODULE(_core, module) {
  module.attr("__version__") = KINDLING_STRING(KINDLING_VERSION_MAJOR) "." KINDLING_STRING(
      KINDLING_VERSION_MINOR) "." KINDLING_STRING(KINDLING_VERSION_PATCH);
  kindling::python::BindRuntime(module);
  kindling::python::BindMetadata(module);
  kindling::python::BindOperators(module);
  kindling::python::BindPlan(module);
#ifdef KINDLING_JAX
  module.attr("jax_handlers") = kindling::python::JaxHandlers();
#else
  module.attr("jax_handlers") = nanobind::dict();
#endif
}
