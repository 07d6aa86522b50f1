#include "plan/balance.h"

#include "base/checked_math.h"

namespace kindling {
namespace {

int64_t Largest(const std::vector<int64_t>& loads) {
  return *std::max_element(loads.begin(), loads.end());
}

// No plan is faster than this: the mean load, or the heaviest row.
int64_t LowerBound(const std::vector<KeyCountRange>& sorted_rows, int64_t num_cores,
                   const CostModel& costs) {
  return std::max(CeilDiv(TotalCost(sorted_rows, costs), num_cores),
                  costs.OfRow(sorted_rows.front().high));
}

}  // namespace

std::vector<int64_t> CyclicLoads(const BatchLengths& batch, int64_t num_cores,
                                 const CostModel& costs) {
  std::vector<int64_t> loads(num_cores, 0);
  int64_t everywhere = 0;  // what every core has besides
  int64_t core = 0;        // whose turn it is
  for (const SequenceLengths& sequence : batch.sequences) {
    const SequenceRanges counts = KeyCountsOfSequence(batch, sequence);
    for (int i = 0; i < counts.size; ++i) {
      const KeyCountRange& range = counts.ranges[i];
      for (int64_t key_count = range.low; key_count <= range.high; ++key_count) {
        const int64_t cost = costs.OfRow(key_count);
        int64_t left = range.num_rows;
        if (left >= num_cores) {
          everywhere += left / num_cores * cost;
          left %= num_cores;
        }
        for (; left > 0; --left) {
          loads[core] += cost;
          if (++core == num_cores) core = 0;
        }
      }
    }
  }
  for (int64_t& load : loads) load += everywhere;
  return loads;
}

std::vector<int64_t> SnakeLoads(const std::vector<KeyCountRange>& sorted_rows, int64_t num_cores,
                                const CostModel& costs) {
  std::vector<int64_t> loads(num_cores, 0);
  int64_t core = 0;
  int64_t step = 1;
  int64_t left_in_round = num_cores;
  for (const KeyCountRange& range : sorted_rows) {
    for (int64_t key_count = range.high; key_count >= range.low; --key_count) {
      const int64_t cost = costs.OfRow(key_count);
      for (int64_t row = 0; row < range.num_rows; ++row) {
        loads[core] += cost;
        if (--left_in_round > 0) {
          core += step;
        } else {  // turn round: the same core comes first again
          left_in_round = num_cores;
          step = -step;
        }
      }
    }
  }
  return loads;
}

DealingLaw ChooseLaw(const BatchLengths& batch, int64_t num_cores, const CostModel& costs) {
  if (batch.num_rows <= num_cores) return DealingLaw::kCyclic;  // a core each
  const std::vector<KeyCountRange> sorted_rows = SortedKeyCounts(batch);
  const int64_t bound = LowerBound(sorted_rows, num_cores, costs);
  const int64_t good_enough = bound + bound / 512;
  const int64_t cyclic = Largest(CyclicLoads(batch, num_cores, costs));
  if (cyclic <= good_enough) return DealingLaw::kCyclic;
  const int64_t snake = Largest(SnakeLoads(sorted_rows, num_cores, costs));
  if (snake <= good_enough) return DealingLaw::kSnake;
  const int64_t levelled = Largest(DealLevelled(sorted_rows, batch.num_rows, num_cores, costs,
                                                [](int64_t, int64_t, int64_t) {}));
  if (cyclic <= snake && cyclic <= levelled) return DealingLaw::kCyclic;
  return snake <= levelled ? DealingLaw::kSnake : DealingLaw::kLevelled;
}

}  // namespace kindling
