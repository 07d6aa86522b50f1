// Deals the work of an operator in units: whole blocks of rows or, where there are too few of them
// for the workers, blocks with one span of keys each.
#ifndef KINDLING_SRC_PLAN_SCHEDULE_H_
#define KINDLING_SRC_PLAN_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "plan/tiling.h"

namespace kindling {

// Spans [span_begin, span_end) of the keys that a block of rows sees, as far as it has them. A
// block that sees no key has one empty span.
struct Unit {
  int64_t block = 0;
  int64_t span_begin = 0;
  int64_t span_end = 0;
};

// Units are numbered block by block, spans ascending: who waits for an earlier block, or for an
// earlier span of the same block, waits for an earlier unit.
class Schedule {
 public:
  Schedule(const Tiling& tiling, int64_t keys_per_span, int64_t max_workers);

  // Whether units are single spans. Then there are fewer than 2 * max_workers blocks.
  bool splits_blocks() const { return !unit_begin_.empty(); }
  int64_t num_units() const { return splits_blocks() ? unit_begin_.back() : num_blocks_; }
  // Requires: 0 <= unit < num_units().
  Unit At(int64_t unit) const;
  // The unit of a block's first span. Requires: splits_blocks().
  int64_t FirstUnit(int64_t block) const { return unit_begin_[block]; }

 private:
  int64_t num_blocks_;
  std::vector<int64_t> unit_begin_;  // (blocks + 1,) prefix sums where blocks are split
};

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_SCHEDULE_H_
