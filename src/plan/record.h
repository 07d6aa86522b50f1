// Records in tensors. One that is read was written by somebody else and is not trusted.
#ifndef KINDLING_SRC_PLAN_RECORD_H_
#define KINDLING_SRC_PLAN_RECORD_H_

#include <array>
#include <cstdint>

#include "kindling/metadata.h"
#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

using MetadataWords = std::array<int32_t, kMetadataWords>;

// Read from and written to an int32 vector of 64 of any stride. Requires: its descriptor and data
// have been checked.
MetadataWords LoadWords(const ConstTensor& metadata);
void StoreWords(const MetadataWords& words, const Tensor& metadata);

// Accepts an absent tensor, and an int32 (64,) one, whatever its words are.
Status CheckMetadataDescriptor(const ConstTensor& metadata);

// Accepts an absent tensor, and an int32 (64,) one that holds a valid record for `problem`.
Status CheckMetadataInput(const ConstTensor& metadata, const Problem& problem);

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_RECORD_H_
