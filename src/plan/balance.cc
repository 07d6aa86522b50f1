#include "plan/balance.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"

namespace kindling {
namespace {

int64_t Largest(const std::vector<int64_t>& loads) {
  return *std::max_element(loads.begin(), loads.end());
}

// Adds cost, cost + step, ... to consecutive cores. A loop without branches: most rows pass here.
void AddCosts(int64_t* loads, int64_t count, int64_t cost, int64_t step) {
  for (int64_t i = 0; i < count; ++i) loads[i] += cost + i * step;
}

// Deals rows to cores 0, 1, ..., C-1, 0, 1, ...
class CyclicDealer {
 public:
  explicit CyclicDealer(int64_t num_cores) : loads_(num_cores, 0) {}

  // `count` rows that cost `cost`, cost + step, ...
  void Deal(int64_t count, int64_t cost, int64_t step) {
    const auto num_cores = static_cast<int64_t>(loads_.size());
    if (step == 0 && count >= num_cores) {
      everywhere_ += count / num_cores * cost;
      count %= num_cores;
    }
    while (count > 0) {
      const int64_t some = std::min(count, num_cores - next_);
      AddCosts(loads_.data() + next_, some, cost, step);
      next_ = next_ + some == num_cores ? 0 : next_ + some;
      cost += some * step;
      count -= some;
    }
  }
  std::vector<int64_t> TakeLoads() {
    for (int64_t& load : loads_) load += everywhere_;
    return std::move(loads_);
  }

 private:
  std::vector<int64_t> loads_;
  int64_t everywhere_ = 0;  // what every core has besides
  int64_t next_ = 0;        // whose turn it is
};

// Deals rows to cores 0, ..., C-1, C-1, ..., 0, 0, ...
class SnakeDealer {
 public:
  explicit SnakeDealer(int64_t num_cores) : loads_(num_cores, 0) {}

  // As CyclicDealer.
  void Deal(int64_t count, int64_t cost, int64_t step) {
    const auto num_cores = static_cast<int64_t>(loads_.size());
    while (count > 0) {
      const int64_t some = std::min(count, num_cores - dealt_);
      if (forwards_) {
        AddCosts(loads_.data() + dealt_, some, cost, step);
      } else {
        AddCosts(loads_.data() + num_cores - dealt_ - some, some, cost + (some - 1) * step, -step);
      }
      dealt_ += some;
      if (dealt_ == num_cores) {
        dealt_ = 0;
        forwards_ = !forwards_;
      }
      cost += some * step;
      count -= some;
    }
  }
  std::vector<int64_t> TakeLoads() { return std::move(loads_); }

 private:
  std::vector<int64_t> loads_;
  int64_t dealt_ = 0;  // rows of this round
  bool forwards_ = true;
};

// No plan is faster than this: the mean load, or the heaviest row.
int64_t LowerBound(const std::vector<KeyCountRange>& sorted_rows, int64_t num_cores,
                   const CostModel& costs) {
  return std::max(CeilDiv(TotalCost(sorted_rows, costs), num_cores),
                  costs.OfRow(sorted_rows.front().high));
}

}  // namespace

std::vector<int64_t> CyclicLoads(const BatchLengths& batch, int64_t num_cores,
                                 const CostModel& costs) {
  CyclicDealer dealer(num_cores);
  for (const SequenceLengths& sequence : batch.sequences) {
    const SequenceRanges counts = KeyCountsOfSequence(batch, sequence);
    for (int i = 0; i < counts.size; ++i) {
      const KeyCountRange& range = counts.ranges[i];
      if (range.num_rows == 1) {
        dealer.Deal(range.high - range.low + 1, costs.OfRow(range.low), costs.pair_cost);
        continue;
      }
      for (int64_t key_count = range.low; key_count <= range.high; ++key_count) {
        dealer.Deal(range.num_rows, costs.OfRow(key_count), 0);
      }
    }
  }
  return dealer.TakeLoads();
}

std::vector<int64_t> SnakeLoads(const std::vector<KeyCountRange>& sorted_rows, int64_t num_cores,
                                const CostModel& costs) {
  SnakeDealer dealer(num_cores);
  for (const KeyCountRange& range : sorted_rows) {
    if (range.num_rows == 1) {
      dealer.Deal(range.high - range.low + 1, costs.OfRow(range.high), -costs.pair_cost);
      continue;
    }
    for (int64_t key_count = range.high; key_count >= range.low; --key_count) {
      dealer.Deal(range.num_rows, costs.OfRow(key_count), 0);
    }
  }
  return dealer.TakeLoads();
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
