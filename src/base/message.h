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

// What dtypes are called, here and in NumPy, torch and JAX: the one table of their names.
struct NamedDType {
  DType dtype;
  std::string_view name;
};
inline constexpr NamedDType kDTypes[] = {
    {DType::kFloat32, "float32"}, {DType::kFloat16, "float16"}, {DType::kBFloat16, "bfloat16"},
    {DType::kFloat64, "float64"}, {DType::kInt32, "int32"},
};
inline constexpr std::string_view kUnnamedDType = "another dtype";

// "float32", "bfloat16", ...; kUnnamedDType for kOther.
std::string_view DTypeName(DType dtype);
// The dtype of that name; kOther where there is none.
DType DTypeOfName(std::string_view name);

// A failure that names the argument which its message begins with.
Status MakeFailure(StatusCode code, std::string message);

template <class... Parts>
Status InvalidArgument(const Parts&... parts) {
  return MakeFailure(StatusCode::kInvalidArgument, Concat(parts...));
}

template <class... Parts>
Status InvalidDtype(const Parts&... parts) {
  return MakeFailure(StatusCode::kInvalidDtype, Concat(parts...));
}

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
