// Reads a record that somebody else wrote: an untrusted tensor of integers.
#ifndef KINDLING_SRC_PLAN_RECORD_H_
#define KINDLING_SRC_PLAN_RECORD_H_

#include "kindling/metadata.h"
#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

// Accepts an absent tensor, and an int32 (64,) one, whatever its words are.
Status CheckMetadataDescriptor(const ConstTensor& metadata);

// Accepts an absent tensor, and an int32 (64,) one that holds a valid record for `problem`.
Status CheckMetadataInput(const ConstTensor& metadata, const Problem& problem);

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_RECORD_H_
