// Dealing laws: which core takes which row, and how long the slowest core takes under the cost
// model.
#ifndef KINDLING_SRC_PLAN_BALANCE_H_
#define KINDLING_SRC_PLAN_BALANCE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/checked_math.h"
#include "kindling/metadata.h"
#include "plan/cost_model.h"

namespace kindling {

// The law with the smallest makespan for `num_cores` cores; the simplest that comes within 1/512
// of the lower bound is good enough. Requires: costs.Fits the batch, num_cores >= 1.
DealingLaw ChooseLaw(const BatchLengths& batch, int64_t num_cores, const CostModel& costs);

// The load of every core under DealingLaw::kCyclic and ::kSnake, O(T + B) time at most.
// Requires: as ChooseLaw.
std::vector<int64_t> CyclicLoads(const BatchLengths& batch, int64_t num_cores,
                                 const CostModel& costs);
std::vector<int64_t> SnakeLoads(const std::vector<KeyCountRange>& sorted_rows, int64_t num_cores,
                                const CostModel& costs);

// Core of a rank under DealingLaw::kSnake.
constexpr int64_t SnakeCore(int64_t rank, int64_t num_cores) {
  const int64_t place = rank % num_cores;
  return rank / num_cores % 2 == 0 ? place : num_cores - 1 - place;
}

// Cores by load, the least loaded on top, ties to the lowest core.
class CoreHeap {
 public:
  explicit CoreHeap(int64_t num_cores) : entries_(num_cores) {
    for (int64_t core = 0; core < num_cores; ++core) entries_[core] = {0, core};
  }

  // Adds to the load of the least loaded core and returns that core.
  int64_t AddToLeast(int64_t cost) {
    Entry entry = entries_[0];
    const int64_t least = entry.core;
    entry.load += cost;
    const auto size = static_cast<int64_t>(entries_.size());
    int64_t at = 0;
    for (int64_t child = 1; child < size; child = 2 * at + 1) {
      if (child + 1 < size && Less(entries_[child + 1], entries_[child])) ++child;
      if (!Less(entries_[child], entry)) break;
      entries_[at] = entries_[child];
      at = child;
    }
    entries_[at] = entry;
    return least;
  }

 private:
  struct Entry {
    int64_t load;
    int64_t core;
  };
  static bool Less(const Entry& a, const Entry& b) {
    return a.load < b.load || (a.load == b.load && a.core < b.core);
  }
  std::vector<Entry> entries_;
};

// Deals ranks by DealingLaw::kLevelled: calls assign(rank, count, core), ranks ascending, and
// returns the cores' loads. Part of the record's meaning: a change needs a new extension version.
//
// The first kHeadRowsPerCore * C ranks go one by one to the least loaded core, ties to the lowest.
// Then the level is found that would hold everything exactly, and cores 0, 1, ... take consecutive
// ranks until each has reached it. What follows the head is light, so no core ends far above the
// level.
inline constexpr int64_t kHeadRowsPerCore = 32;

template <class Assign>
std::vector<int64_t> DealLevelled(const std::vector<KeyCountRange>& sorted_rows, int64_t num_rows,
                                  int64_t num_cores, const CostModel& costs, Assign assign) {
  CoreHeap cores(num_cores);
  const int64_t head = std::min(num_rows, SaturatingMul(kHeadRowsPerCore, num_cores));
  std::vector<int64_t> loads(num_cores, 0);

  int64_t level = 0;
  int64_t core = 0;
  int64_t rank = 0;
  int64_t rest = TotalCost(sorted_rows, costs);  // of what is still to be dealt
  const auto find_level = [&] {
    std::vector<int64_t> ascending = loads;
    std::sort(ascending.begin(), ascending.end());
    int64_t filled = rest;
    for (int64_t used = 1; used <= num_cores; ++used) {
      filled += ascending[used - 1];
      level = CeilDiv(filled, used);
      if (used == num_cores || level <= ascending[used]) return;
    }
  };
  for (const KeyCountRange& range : sorted_rows) {
    for (int64_t key_count = range.high; key_count >= range.low; --key_count) {
      const int64_t cost = costs.OfRow(key_count);
      int64_t left = range.num_rows;
      for (; left > 0 && rank < head; --left, ++rank) {
        const int64_t least = cores.AddToLeast(cost);
        loads[least] += cost;
        assign(rank, int64_t{1}, least);
        rest -= cost;
        if (rank + 1 == head) find_level();
      }
      while (left > 0) {
        while (loads[core] >= level) ++core;
        const int64_t count = std::min(left, CeilDiv(level - loads[core], cost));
        assign(rank, count, core);
        loads[core] += count * cost;
        rank += count;
        left -= count;
      }
    }
  }
  return loads;
}

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_BALANCE_H_
