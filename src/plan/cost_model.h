// What a row costs, and the rows of a batch in the order of their cost.
#ifndef KINDLING_SRC_PLAN_COST_MODEL_H_
#define KINDLING_SRC_PLAN_COST_MODEL_H_

#include <cstdint>
#include <vector>

#include "base/checked_math.h"
#include "kindling/problem.h"
#include "problem/lengths.h"

namespace kindling {

// cost = pair_cost * visible keys + row_overhead. Every cost is at least 1.
struct CostModel {
  int64_t pair_cost = 1;
  int64_t row_overhead = 1;

  int64_t OfRow(int64_t num_visible_keys) const {
    return pair_cost * num_visible_keys + row_overhead;
  }
  // Whether sums over all rows fit into 64 bits.
  bool Fits(int64_t num_rows, int64_t max_num_keys) const {
    const int64_t heaviest = SaturatingAdd(SaturatingMul(pair_cost, max_num_keys), row_overhead);
    return SaturatingMul(num_rows, heaviest) < kInt64Max;
  }
};

// The calibrated constants: one row costs as much beside its keys as 16 keys do.
inline constexpr CostModel kCalibratedCosts{1, 16};

// What the cost of a sequence's rows depends on.
struct SequenceLengths {
  int32_t num_rows = 0;
  int32_t num_keys = 0;
  int32_t residual = 0;
};

// The lengths of a batch, gathered: planning goes over them several times.
struct BatchLengths {
  std::vector<SequenceLengths> sequences;
  int64_t num_rows = 0;
  int64_t max_num_keys = 0;
  MaskMode mask_mode = MaskMode::kNone;
  int64_t cmp_ratio = 1;
};
BatchLengths GatherLengths(const Lengths& lengths, const LengthTotals& totals);
BatchLengths GatherLengths(const Problem& problem);

// Every key count from `high` down to `low` is seen by `num_rows` rows each.
struct KeyCountRange {
  int64_t high = 0;
  int64_t low = 0;
  int64_t num_rows = 0;
};

// The rows of a sequence by the keys they see, in the order of the rows: few keys first.
struct SequenceRanges {
  KeyCountRange ranges[3];
  int size = 0;
};
SequenceRanges KeyCountsOfSequence(const BatchLengths& batch, const SequenceLengths& sequence);

// How many rows see how many keys, most keys first, ranges disjoint. O(B log B) time and O(B)
// bytes, or O(T + B) of both where there are so many sequences that sorting them would take longer.
std::vector<KeyCountRange> SortedKeyCounts(const BatchLengths& batch);

// The costs of all rows together. Requires: costs.Fits the batch that the ranges come from.
int64_t TotalCost(const std::vector<KeyCountRange>& ranges, const CostModel& costs);

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_COST_MODEL_H_
