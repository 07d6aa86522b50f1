// The operators described as data: what front doors, documentation and their tests are held to.
#ifndef KINDLING_SCHEMA_H_
#define KINDLING_SCHEMA_H_

#include <span>
#include <string_view>

#include "kindling/export.h"

namespace kindling {

// One argument of an operator. Shapes and dtypes are in the words of docs/glossary.md.
struct ArgumentDescription {
  std::string_view name;
  std::string_view kind;           // "input", "output", "attribute" or "environment"
  std::string_view type;           // "int32 tensor", "fp32 tensor", "int", "float" or "str"
  std::string_view shape;          // of a tensor, BSND; TND where they differ; else empty
  std::string_view default_value;  // "required", "none", or the value as text
  std::string_view doc;
};

// "make_metadata", "softmax_lse", "kl_loss_grad", "attention_teacher".
KINDLING_API std::span<const std::string_view> OperatorNames();
// The arguments of an operator, inputs first; nothing for a name that is none of these.
KINDLING_API std::span<const ArgumentDescription> DescribeOperator(std::string_view name);
// Those that say which rows see which keys; every operator has them.
KINDLING_API std::span<const ArgumentDescription> DescribeRows();

}  // namespace kindling

#endif  // KINDLING_SCHEMA_H_
