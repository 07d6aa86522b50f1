#include "plan/cost_model.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kindling {
namespace {

// A place where the number of rows per key count changes, going down.
struct Change {
  int64_t key_count;  // from here on downwards
  int64_t num_rows;   // this many more (or fewer) rows see each key count
};

template <class Visit>
void ForChanges(const BatchLengths& batch, Visit visit) {
  for (const SequenceLengths& sequence : batch.sequences) {
    const SequenceRanges counts = KeyCountsOfSequence(batch, sequence);
    for (int i = 0; i < counts.size; ++i) {
      visit(Change{counts.ranges[i].high, counts.ranges[i].num_rows});
      visit(Change{counts.ranges[i].low - 1, -counts.ranges[i].num_rows});
    }
  }
}

// Turns changes, which come in descending order of key count, into ranges.
class RangeBuilder {
 public:
  void Add(const Change& change) {
    if (num_rows_ > 0 && change.key_count < high_) {
      ranges_.push_back({high_, change.key_count + 1, num_rows_});
    }
    high_ = change.key_count;
    num_rows_ += change.num_rows;
  }
  std::vector<KeyCountRange> Take() { return std::move(ranges_); }

 private:
  std::vector<KeyCountRange> ranges_;
  int64_t high_ = 0;
  int64_t num_rows_ = 0;
};

}  // namespace

BatchLengths GatherLengths(const Lengths& lengths, const LengthTotals& totals) {
  BatchLengths batch;
  batch.num_rows = totals.num_rows;
  batch.max_num_keys = totals.max_num_keys;
  batch.mask_mode = lengths.mask_mode;
  batch.cmp_ratio = lengths.cmp_ratio;
  batch.sequences.resize(lengths.num_batches);
  for (int64_t i = 0; i < lengths.num_batches; ++i) {
    batch.sequences[i] = {static_cast<int32_t>(lengths.q.Used(i)),
                          static_cast<int32_t>(lengths.k.Used(i)),
                          static_cast<int32_t>(lengths.Residual(i))};
  }
  return batch;
}

BatchLengths GatherLengths(const Problem& problem) {
  BatchLengths batch;
  batch.num_rows = problem.num_rows();
  batch.max_num_keys = problem.max_num_keys();
  batch.mask_mode = problem.mask_mode();
  batch.cmp_ratio = problem.cmp_ratio();
  batch.sequences.resize(problem.num_batches());
  for (int64_t i = 0; i < problem.num_batches(); ++i) {
    const Sequence sequence = problem.sequence(i);
    batch.sequences[i] = {static_cast<int32_t>(sequence.num_rows),
                          static_cast<int32_t>(sequence.num_keys),
                          static_cast<int32_t>(sequence.residual)};
  }
  return batch;
}

SequenceRanges KeyCountsOfSequence(const BatchLengths& batch, const SequenceLengths& sequence) {
  SequenceRanges out;
  const int64_t num_rows = sequence.num_rows;
  if (num_rows == 0) return out;
  const int64_t highest = sequence.num_keys;  // the last row sees all
  const int64_t lowest =
      batch.mask_mode == MaskMode::kNone
          ? highest
          : CausalVisibleKeys(highest, batch.cmp_ratio, sequence.residual, num_rows, 0);
  if (lowest == highest) {
    out.ranges[out.size++] = {highest, lowest, num_rows};
    return out;
  }
  // Key counts rise by one every cmp_ratio rows; the steps at either end may be shorter, the one at
  // zero longer.
  const int64_t last_step = sequence.residual + int64_t{1};  // rows that see all keys
  const int64_t between = highest - lowest - 1;              // key counts strictly between
  out.ranges[out.size++] = {lowest, lowest, num_rows - last_step - between * batch.cmp_ratio};
  if (between > 0) out.ranges[out.size++] = {highest - 1, lowest + 1, batch.cmp_ratio};
  out.ranges[out.size++] = {highest, highest, last_step};
  return out;
}

int64_t TotalCost(const std::vector<KeyCountRange>& ranges, const CostModel& costs) {
  int64_t total = 0;
  for (const KeyCountRange& range : ranges) {
    const int64_t num_counts = range.high - range.low + 1;
    const int64_t sum_counts = num_counts * (range.high + range.low) / 2;  // below 2^63 since T is
    total += range.num_rows * (costs.pair_cost * sum_counts + costs.row_overhead * num_counts);
  }
  return total;
}

std::vector<KeyCountRange> SortedKeyCounts(const BatchLengths& batch) {
  RangeBuilder builder;
  const auto num_sequences = static_cast<int64_t>(batch.sequences.size());
  if (batch.max_num_keys <= std::min(4 * batch.num_rows, 64 * num_sequences)) {
    // A counter for each key count; counter i is for key count i - 1.
    std::vector<int64_t> change(static_cast<size_t>(batch.max_num_keys) + 2, 0);
    ForChanges(batch, [&](const Change& c) { change[c.key_count + 1] += c.num_rows; });
    for (int64_t i = batch.max_num_keys + 1; i >= 0; --i) {
      if (change[i] != 0) builder.Add({i - 1, change[i]});
    }
  } else {
    std::vector<Change> changes;
    changes.reserve(6 * num_sequences);
    ForChanges(batch, [&](const Change& c) { changes.push_back(c); });
    std::sort(changes.begin(), changes.end(),
              [](const Change& a, const Change& b) { return a.key_count > b.key_count; });
    for (const Change& change : changes) builder.Add(change);
  }
  return builder.Take();
}

}  // namespace kindling
