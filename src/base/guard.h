// The edge at which exceptions of the standard library end.
#ifndef KINDLING_SRC_BASE_GUARD_H_
#define KINDLING_SRC_BASE_GUARD_H_

#include <new>
#include <stdexcept>

#include "kindling/status.h"

namespace kindling {

// Calls `function`, which returns a Status or a Result, and turns a failed allocation into one.
template <class Function>
auto GuardMemory(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return Status(StatusCode::kOutOfMemory, "memory",
                "memory: expected enough for this call, got too little");
}

}  // namespace kindling

#endif  // KINDLING_SRC_BASE_GUARD_H_
