// The compatible split: rows dealt to cores like cards.
#ifndef KINDLING_SRC_PLAN_SPLIT_H_
#define KINDLING_SRC_PLAN_SPLIT_H_

#include <cstdint>

#include "kindling/metadata.h"

namespace kindling {

// The record for `num_rows` rows on `num_cores` cores.
// Requires: 0 <= num_rows <= INT32_MAX, num_cores >= 1, 0 <= max_seq_k <= INT32_MAX. Words fit
// into 32 bits for num_cores <= INT32_MAX.
Metadata SplitRows(int64_t num_rows, int64_t num_cores, int64_t max_seq_k);

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_SPLIT_H_
