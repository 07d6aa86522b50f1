#include "plan/schedule.h"

#include <algorithm>

#include "base/checked_math.h"

namespace kindling {

Schedule::Schedule(const Tiling& tiling, int64_t keys_per_span, int64_t max_workers)
    : num_blocks_(tiling.num_blocks()) {
  // Two blocks a worker leave no more than a block's time idle at the end, and bound the memory of
  // totals that a split needs.
  if (max_workers == 1 || num_blocks_ == 0 || num_blocks_ >= 2 * max_workers) return;
  unit_begin_.resize(num_blocks_ + 1);
  for (int64_t block = 0; block < num_blocks_; ++block) {
    const int64_t num_keys = tiling.MostVisibleKeys(tiling.Block(block));
    unit_begin_[block + 1] =
        unit_begin_[block] + std::max<int64_t>(1, CeilDiv(num_keys, keys_per_span));
  }
  if (unit_begin_.back() == num_blocks_) unit_begin_.clear();  // nothing to split
}

Unit Schedule::At(int64_t unit) const {
  if (!splits_blocks()) return {unit, 0, kInt64Max};
  const int64_t block =
      std::upper_bound(unit_begin_.begin(), unit_begin_.end(), unit) - unit_begin_.begin() - 1;
  const int64_t span = unit - unit_begin_[block];
  return {block, span, span + 1};
}

}  // namespace kindling
