#include "base/message.h"

#include <utility>

namespace kindling {

std::string_view DTypeName(DType dtype) {
  for (const NamedDType& named : kDTypes) {
    if (named.dtype == dtype) return named.name;
  }
  return kUnnamedDType;
}

DType DTypeOfName(std::string_view name) {
  for (const NamedDType& named : kDTypes) {
    if (named.name == name) return named.dtype;
  }
  return DType::kOther;
}

// Here alone the form of messages is known: `<argument>: ...`, `<argument>[<index>]...`, or
// `<argument>.shape...`.
Status MakeFailure(StatusCode code, std::string message) {
  const size_t end = message.find_first_of(":[.");
  std::string argument = message.substr(0, end == message.npos ? 0 : end);
  const bool lacks_name = code == StatusCode::kInvalidDtype && message.ends_with(kUnnamedDType);
  const size_t size = message.size();
  Status status(code, std::move(argument), std::move(message));
  if (lacks_name) status.MarkUnnamedDtype(size - kUnnamedDType.size());
  return status;
}

std::string ShapeString(const ConstTensor& tensor) {
  std::string out = "(";
  for (int32_t axis = 0; axis < tensor.rank; ++axis) {
    if (axis > 0) out += ", ";
    if (axis == kMaxRank) {
      out += "...";
      break;
    }
    out += std::to_string(tensor.shape[axis]);
  }
  if (tensor.rank == 1) out += ",";
  return out + ")";
}

}  // namespace kindling
