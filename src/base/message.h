// Words of error messages: `<argument>: expected <what>, got <what>`.
#ifndef KINDLING_SRC_BASE_MESSAGE_H_
#define KINDLING_SRC_BASE_MESSAGE_H_

#include <concepts>
#include <string>
#include <string_view>

#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

inline void AppendTo(std::string& out, std::string_view text) { out.append(text); }
inline void AppendTo(std::string& out, std::integral auto value) { out += std::to_string(value); }

// The parts one after the other, integers in decimal.
template <class... Parts>
std::string Concat(const Parts&... parts) {
  std::string out;
  (AppendTo(out, parts), ...);
  return out;
}

template <class... Parts>
Status InvalidArgument(const Parts&... parts) {
  return Status(StatusCode::kInvalidArgument, Concat(parts...));
}

template <class... Parts>
Status InvalidDtype(const Parts&... parts) {
  return Status(StatusCode::kInvalidDtype, Concat(parts...));
}

// "float32", "bfloat16", ...
std::string_view DTypeName(DType dtype);

// "(2, 3, 4)"; extents past kMaxRank print as "...".
std::string ShapeString(const ConstTensor& tensor);

}  // namespace kindling

// Returns from the enclosing function if `expression` is a failed Status.
#define KINDLING_RETURN_IF_ERROR(expression)           \
  do {                                                 \
    ::kindling::Status kindling_status = (expression); \
    if (!kindling_status.ok()) return kindling_status; \
  } while (false)

#endif  // KINDLING_SRC_BASE_MESSAGE_H_
