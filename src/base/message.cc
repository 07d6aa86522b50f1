#include "base/message.h"

namespace kindling {

std::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kOther:
      break;
  }
  return "another dtype";
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
