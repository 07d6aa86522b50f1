// How the C ABI reports failure: a code, and a text that the thread may ask for.
#ifndef KINDLING_CAPI_SRC_ERRORS_H_
#define KINDLING_CAPI_SRC_ERRORS_H_

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "kindling/status.h"

namespace kindling::acl {

// A code of acl.h or acl_meta.h and its text; code 0 is success.
struct [[nodiscard]] Failure {
  int32_t code = 0;
  std::string message;
};

// The aclnn code of a Status of the core.
Failure FailureOf(const Status& status);

// Keeps the text for aclGetRecentErrMsg of this thread and returns the code.
int32_t Report(const Failure& failure) noexcept;

// The text that Report kept, or null; forgets it.
const char* TakeRecentMessage() noexcept;

// What stands between the C ABI and C++: calls function(), which returns a Failure, and turns
// everything that is thrown into one.
template <class Function>
int32_t Guarded(int32_t code_of_exceptions, Function function) noexcept {
  try {
    return Report(function());
  } catch (const std::exception& error) {
    try {
      return Report({code_of_exceptions, error.what()});
    } catch (...) {
    }
  } catch (...) {
  }
  return Report({code_of_exceptions, {}});
}

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_ERRORS_H_
