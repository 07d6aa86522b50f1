// How well balanced plans balance. The bounds are makespan / max(mean load, heaviest row) under the
// cost model, keys + 16 a row.
#include "plan/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "kindling/metadata.h"
#include "plan/ragged_batch.h"

namespace kindling {
namespace {

// From the rows themselves, by the reader alone.
double Imbalance(const RaggedBatch& batch, int64_t num_cores, PlanPolicy policy) {
  const MetadataArgs args = batch.Args(num_cores, policy);
  const Result<Metadata> metadata = MakeMetadata(args);
  const Result<Problem> problem = Problem::Create(args);
  EXPECT_TRUE(metadata.ok() && problem.ok());
  const Result<Plan> plan = Plan::Decode(metadata.value(), problem.value());
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  int64_t total = 0;
  int64_t heaviest = 0;
  int64_t makespan = 0;
  for (int64_t core = 0; core < num_cores; ++core) {
    int64_t load = 0;
    for (int64_t row : plan.value().RowsOfCore(core)) {
      const int64_t cost = problem.value().Locate(row).num_visible_keys + 16;
      load += cost;
      heaviest = std::max(heaviest, cost);
    }
    total += load;
    makespan = std::max(makespan, load);
  }
  const double mean = static_cast<double>(total) / static_cast<double>(num_cores);
  return static_cast<double>(makespan) / std::max(mean, static_cast<double>(heaviest));
}

class Named : public testing::TestWithParam<int64_t> {
 protected:
  RaggedBatch Batch() const {
    RaggedBatch batch;
    batch.cmp_ratio = GetParam();
    return batch;
  }
};
INSTANTIATE_TEST_SUITE_P(Balance, Named, testing::Values(1, 4));

TEST_P(Named, OneCausalSequence) {
  RaggedBatch batch = Batch();
  batch.Add(2048, 2048);
  EXPECT_LE(Imbalance(batch, 24, PlanPolicy::kBalanced), 1.02);
}

TEST_P(Named, AsManySequencesAsRowsAreCores) {
  RaggedBatch batch = Batch();
  batch.Add(32, {28, 28});
  if (batch.cmp_ratio == 1) {
    EXPECT_NEAR(Imbalance(batch, 28, PlanPolicy::kRows), 1.44, 0.01);
  }
  EXPECT_LE(Imbalance(batch, 28, PlanPolicy::kBalanced), 1.02);
}

TEST_P(Named, SequencesOfTenRoundsEach) {
  RaggedBatch batch = Batch();
  batch.Add(8, {280, 280});
  if (batch.cmp_ratio == 1) {
    EXPECT_NEAR(Imbalance(batch, 28, PlanPolicy::kRows), 1.09, 0.01);
  }
  EXPECT_LE(Imbalance(batch, 28, PlanPolicy::kBalanced), 1.02);
}

TEST_P(Named, FewHeavyRowsAmongManyLight) {
  RaggedBatch batch = Batch();
  batch.Add(3, {4, 100000});
  batch.Add(40, {50, 40});
  batch.Add(3, {4, 100000});
  EXPECT_LE(Imbalance(batch, 24, PlanPolicy::kBalanced), 1.02);
}

TEST(Balance, RandomRaggedBatches) {
  std::mt19937 generator(600);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(generator() % bound); };
  std::vector<double> imbalances;
  while (imbalances.size() < 600) {
    RaggedBatch batch;
    const int64_t max_rows = (int64_t[]){20, 300, 3000}[below(3)];
    const int64_t max_more_keys = (int64_t[]){1, 1000, 20000}[below(3)];
    const int64_t num_cores = (int64_t[]){2, 8, 24, 28, 32, 48}[below(6)];
    for (int64_t left = 1 + below(63); left > 0; --left) {
      const int64_t num_rows = below(max_rows);
      batch.Add(num_rows, num_rows + below(max_more_keys));
    }
    if (batch.num_rows() < 4 * num_cores) continue;
    const double balanced = Imbalance(batch, num_cores, PlanPolicy::kBalanced);
    EXPECT_LE(balanced, Imbalance(batch, num_cores, PlanPolicy::kRows));
    imbalances.push_back(balanced);
  }
  std::sort(imbalances.begin(), imbalances.end());
  EXPECT_LE(imbalances[300], 1.005);
  EXPECT_LE(imbalances[540], 1.03);
  EXPECT_LE(imbalances[594], 1.12);
}

TEST(Balance, KeepsTheCompatibleRecordWherePlainDealingIsBest) {
  RaggedBatch batch;
  batch.mask_mode = 0;
  batch.Add(10, {100, 64});
  const Metadata balanced = MakeMetadata(batch.Args(24, PlanPolicy::kBalanced)).value();
  EXPECT_EQ(balanced.extension_tag, 0);
  EXPECT_EQ(balanced.law, 0);
}

TEST(Balance, LeavesWordsZeroToFiveAlone) {
  RaggedBatch batch;
  batch.Add(32, {28, 28});
  const Metadata rows = MakeMetadata(batch.Args(28, PlanPolicy::kRows)).value();
  const Metadata balanced = MakeMetadata(batch.Args(28, PlanPolicy::kBalanced)).value();
  EXPECT_EQ(balanced.extension_tag, kExtensionTag);
  EXPECT_EQ(balanced.total_size, rows.total_size);
  EXPECT_EQ(balanced.former_core_size, rows.former_core_size);
  EXPECT_EQ(balanced.remain_core_size, rows.remain_core_size);
  EXPECT_EQ(balanced.remain_core_num, rows.remain_core_num);
  EXPECT_EQ(balanced.used_core_num, rows.used_core_num);
  EXPECT_EQ(balanced.max_seq_k, rows.max_seq_k);
}

TEST(Balance, RowsThatSeeNoKeyCostTheOverhead) {
  RaggedBatch batch;
  batch.Add(16, 4);  // 12 rows see nothing
  const MetadataArgs args = batch.Args(2);
  const Plan plan = Plan::Decode(MakeMetadata(args).value(), Problem::Create(args).value()).value();
  EXPECT_EQ(plan.CostOfRow(0), 16);
  EXPECT_EQ(plan.CostOfRow(15), 20);
}

TEST(Balance, SumsKeyCountsOfEverySequence) {
  // All small sequences: ranges hold each row once, with the keys it sees.
  for (int64_t cmp_ratio : {1, 2, 3}) {
    for (int64_t num_rows = 0; num_rows <= 12; ++num_rows) {
      for (int64_t num_keys = 0; num_keys <= 6; ++num_keys) {
        for (int64_t residual = 0; residual < cmp_ratio; ++residual) {
          RaggedBatch batch;
          batch.cmp_ratio = cmp_ratio;
          batch.Add(num_rows, num_keys, residual);
          const Problem problem = Problem::Create(batch.Args(1)).value();
          std::vector<int64_t> expected;
          for (int64_t row = 0; row < num_rows; ++row) {
            expected.push_back(problem.Locate(row).num_visible_keys);
          }
          std::sort(expected.rbegin(), expected.rend());
          std::vector<int64_t> got;
          for (const KeyCountRange& range : SortedKeyCounts(GatherLengths(problem))) {
            for (int64_t count = range.high; count >= range.low; --count) {
              got.insert(got.end(), range.num_rows, count);
            }
          }
          ASSERT_EQ(got, expected) << num_rows << " rows, " << num_keys << " keys, ratio "
                                   << cmp_ratio << ", residual " << residual;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kindling
