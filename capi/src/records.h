// The records of the two companions of the KL metadata operator, which have layouts of their own.
// Source: Huawei CANN's public documentation.
#ifndef KINDLING_CAPI_SRC_RECORDS_H_
#define KINDLING_CAPI_SRC_RECORDS_H_

#include <array>
#include <cstdint>

#include "kindling/metadata.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling::acl {

using Words = std::array<int32_t, kMetadataWords>;

// Rows T over cores C: T < C: (T, 0, 1, 0); C divides T: (C, 0, T/C, 0); else (T mod C,
// C - T mod C, T/C + 1, T/C). The rest 0.
Words SplitForLse(int64_t num_rows, int64_t num_cores);

// With u = min(T, C, 36): (T, ceil(T/u), floor(T/u), T mod u ? u - T mod u : 0, u); all 0 when
// T = 0.
Words SplitForTeacher(int64_t num_rows, int64_t num_cores);

// Whether a record is that of some number of cores. Requires: CheckRecordDescriptor has passed.
// Errors: kInvalidArgument names the first word that is wrong.
Status ValidateLseRecord(const ConstTensor& metadata, int64_t num_rows);
Status ValidateTeacherRecord(const ConstTensor& metadata, int64_t num_rows);

// Writes words to an int32 vector of 64.
void StoreWords(const Words& words, const Tensor& metadata);

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_RECORDS_H_
