// The records of the two companions of the KL metadata operator, which have layouts of their own.
// Source: Huawei CANN's public documentation.
#ifndef KINDLING_CAPI_SRC_RECORDS_H_
#define KINDLING_CAPI_SRC_RECORDS_H_

#include <cstdint>

#include "kindling/status.h"
#include "kindling/tensor.h"
#include "plan/record.h"

namespace kindling::acl {

// Rows T over cores C: T < C: (T, 0, 1, 0); C divides T: (C, 0, T/C, 0); else (T mod C,
// C - T mod C, T/C + 1, T/C). The rest 0.
MetadataWords SplitForLse(int64_t num_rows, int64_t num_cores);

// With u = min(T, C, 36): (T, ceil(T/u), floor(T/u), T mod u ? u - T mod u : 0, u); all 0 when
// T = 0.
MetadataWords SplitForTeacher(int64_t num_rows, int64_t num_cores);

// Whether a record is that of some number of cores. Requires: CheckMetadataDescriptor has passed.
// Errors: kInvalidArgument names the first word that is wrong.
Status ValidateLseRecord(const ConstTensor& metadata, int64_t num_rows);
Status ValidateTeacherRecord(const ConstTensor& metadata, int64_t num_rows);

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_RECORDS_H_
