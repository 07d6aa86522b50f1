// Reads a plan back from its record.
#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/guard.h"
#include "base/message.h"
#include "kindling/metadata.h"
#include "plan/balance.h"
#include "plan/cost_model.h"

namespace kindling {

struct Plan::Impl {
  explicit Impl(Problem from) : problem(std::move(from)) {}

  Problem problem;
  DealingLaw law = DealingLaw::kCyclic;
  CostModel costs = kCalibratedCosts;
  int64_t num_rows = 0;
  int64_t num_cores = 1;
  int64_t used_cores = 0;
  // Of the other laws: rows grouped by core, where each group begins, and the core of each row.
  std::shared_ptr<const std::vector<int32_t>> rows_by_core;
  std::vector<int64_t> group_begin;
  std::vector<int32_t> core_of_row;
};

namespace {

// Rows in the order of rank: most keys first, ties by row number.
std::vector<int32_t> RankRows(const Problem& problem) {
  std::vector<int32_t> num_keys(problem.num_rows());
  for (int64_t batch = 0; batch < problem.num_batches(); ++batch) {
    const Sequence sequence = problem.sequence(batch);
    for (int64_t position = 0; position < sequence.num_rows; ++position) {
      num_keys[sequence.row_begin + position] =
          static_cast<int32_t>(problem.NumVisibleKeys(sequence, position));
    }
  }
  std::vector<int32_t> rows(problem.num_rows());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](int32_t a, int32_t b) { return num_keys[a] > num_keys[b]; });
  return rows;
}

void DealByRank(Plan::Impl& plan) {
  const std::vector<int32_t> row_of_rank = RankRows(plan.problem);
  std::vector<int32_t> core_of_rank(plan.num_rows);
  if (plan.law == DealingLaw::kSnake) {
    for (int64_t rank = 0; rank < plan.num_rows; ++rank) {
      core_of_rank[rank] = static_cast<int32_t>(SnakeCore(rank, plan.used_cores));
    }
  } else {
    DealLevelled(SortedKeyCounts(GatherLengths(plan.problem)), plan.num_rows, plan.used_cores,
                 plan.costs, [&](int64_t rank, int64_t count, int64_t core) {
                   std::fill_n(core_of_rank.begin() + rank, count, static_cast<int32_t>(core));
                 });
  }
  plan.group_begin.assign(plan.used_cores + 1, 0);
  for (int32_t core : core_of_rank) ++plan.group_begin[core + 1];
  std::partial_sum(plan.group_begin.begin(), plan.group_begin.end(), plan.group_begin.begin());
  auto rows_by_core = std::make_shared<std::vector<int32_t>>(plan.num_rows);
  plan.core_of_row.resize(plan.num_rows);
  std::vector<int64_t> next = plan.group_begin;
  for (int64_t rank = 0; rank < plan.num_rows; ++rank) {
    const int32_t core = core_of_rank[rank];
    (*rows_by_core)[next[core]++] = row_of_rank[rank];
    plan.core_of_row[row_of_rank[rank]] = core;
  }
  plan.rows_by_core = std::move(rows_by_core);
}

}  // namespace

Result<Plan> Plan::Decode(const Metadata& metadata, const Problem& problem) {
  KINDLING_RETURN_IF_ERROR(ValidateMetadata(metadata, problem));
  return GuardMemory([&]() -> Result<Plan> {
    auto impl = std::make_shared<Impl>(problem);
    impl->num_rows = problem.num_rows();
    impl->used_cores = metadata.used_core_num;
    if (impl->num_rows > 0) {
      impl->num_cores = (impl->num_rows + metadata.remain_core_num) / metadata.former_core_size;
    }
    if (metadata.extension_tag != 0) {
      impl->law = static_cast<DealingLaw>(metadata.law);
      impl->costs = CostModel{metadata.pair_cost, metadata.row_overhead};
    }
    if (impl->law != DealingLaw::kCyclic && impl->num_rows > 0) DealByRank(*impl);
    return Plan(std::move(impl));
  });
}

Plan::Plan(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

DealingLaw Plan::law() const { return impl_->law; }
int64_t Plan::num_rows() const { return impl_->num_rows; }
int64_t Plan::num_cores() const { return impl_->num_cores; }
int64_t Plan::pair_cost() const { return impl_->costs.pair_cost; }
int64_t Plan::row_overhead() const { return impl_->costs.row_overhead; }

CoreRows Plan::RowsOfCore(int64_t core) const {
  if (core >= impl_->used_cores) return CoreRows(0, 1, 0);
  if (impl_->rows_by_core != nullptr) {
    const int64_t begin = impl_->group_begin[core];
    return CoreRows(impl_->rows_by_core, begin, impl_->group_begin[core + 1] - begin);
  }
  return CoreRows(core, impl_->used_cores, CeilDiv(impl_->num_rows - core, impl_->used_cores));
}

int64_t Plan::CoreOfRow(int64_t row) const {
  return impl_->core_of_row.empty() ? row % impl_->used_cores : impl_->core_of_row[row];
}

int64_t Plan::CostOfRow(int64_t row) const {
  return impl_->costs.OfRow(impl_->problem.Locate(row).num_visible_keys);
}

Result<std::vector<int64_t>> Plan::CostOfCores() const {
  using Costs = std::vector<int64_t>;
  if (!impl_->costs.Fits(impl_->num_rows, impl_->problem.max_num_keys())) {
    return InvalidArgument("metadata: expected costs whose sum is below 2^63, got more");
  }
  if (impl_->num_rows == 0) return Costs();
  return GuardMemory([&]() -> Result<Costs> {
    const BatchLengths batch = GatherLengths(impl_->problem);
    switch (impl_->law) {
      case DealingLaw::kCyclic:
        return CyclicLoads(batch, impl_->used_cores, impl_->costs);
      case DealingLaw::kSnake:
        return SnakeLoads(SortedKeyCounts(batch), impl_->used_cores, impl_->costs);
      case DealingLaw::kLevelled:
        break;
    }
    return DealLevelled(SortedKeyCounts(batch), impl_->num_rows, impl_->used_cores, impl_->costs,
                        [](int64_t, int64_t, int64_t) {});
  });
}

Result<CoreRows> RowsOfCore(const Metadata& metadata, const Problem& problem, int64_t core) {
  const Result<Plan> plan = Plan::Decode(metadata, problem);
  if (!plan.ok()) return plan.status();
  if (core < 0) return InvalidArgument("core: expected >= 0, got ", core);
  return plan.value().RowsOfCore(core);
}

Result<int64_t> CoreOfRow(const Metadata& metadata, const Problem& problem, int64_t row) {
  const Result<Plan> plan = Plan::Decode(metadata, problem);
  if (!plan.ok()) return plan.status();
  if (row < 0 || row >= problem.num_rows()) {
    return InvalidArgument("row: expected in [0, ", problem.num_rows(), "), got ", row);
  }
  return plan.value().CoreOfRow(row);
}

}  // namespace kindling
