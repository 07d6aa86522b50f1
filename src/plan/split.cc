#include "plan/split.h"

#include <algorithm>

#include "base/checked_math.h"

namespace kindling {

Metadata SplitRows(int64_t num_rows, int64_t num_cores, int64_t max_seq_k) {
  Metadata metadata;
  metadata.max_seq_k = static_cast<int32_t>(max_seq_k);
  if (num_rows == 0) return metadata;
  const int64_t former = CeilDiv(num_rows, num_cores);
  metadata.total_size = static_cast<int32_t>(num_rows);
  metadata.former_core_size = static_cast<int32_t>(former);
  metadata.remain_core_size = static_cast<int32_t>(former - 1);
  metadata.remain_core_num = static_cast<int32_t>(former * num_cores - num_rows);
  metadata.used_core_num = static_cast<int32_t>(std::min(num_rows, num_cores));
  return metadata;
}

}  // namespace kindling
