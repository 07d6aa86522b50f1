// Reading plans back: every row on exactly one core, whatever the law, and by readers that know
// nothing of laws.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "kindling/metadata.h"
#include "plan/ragged_batch.h"

namespace kindling {
namespace {

Metadata MakeRecord(const MetadataArgs& args) {
  Result<Metadata> metadata = MakeMetadata(args);
  EXPECT_TRUE(metadata.ok()) << metadata.status().message();
  return metadata.ok() ? metadata.value() : Metadata();
}

Problem MakeProblem(const MetadataArgs& args) {
  Result<Problem> problem = Problem::Create(args);
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return problem.value();
}

// Sets the law of a record, as a planner that prefers it would.
Metadata WithLaw(Metadata metadata, DealingLaw law) {
  metadata.extension_tag = kExtensionTag;
  metadata.extension_version = kExtensionVersion;
  metadata.law = static_cast<int32_t>(law);
  metadata.pair_cost = 1;
  metadata.row_overhead = 16;
  return metadata;
}

// Every row once over all cores; RowsOfCore and CoreOfRow agree; the costs are those of the rows.
void ExpectCoversEveryRowOnce(const Metadata& metadata, const Problem& problem) {
  const Result<Plan> plan = Plan::Decode(metadata, problem);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<int> times(problem.num_rows(), 0);
  const Result<std::vector<int64_t>> costs = plan.value().CostOfCores();
  ASSERT_TRUE(costs.ok());
  for (int64_t core = 0; core < plan.value().num_cores(); ++core) {
    int64_t cost = 0;
    for (int64_t row : plan.value().RowsOfCore(core)) {
      ASSERT_GE(row, 0);
      ASSERT_LT(row, problem.num_rows());
      ++times[row];
      EXPECT_EQ(plan.value().CoreOfRow(row), core);
      cost += plan.value().CostOfRow(row);
    }
    if (core < metadata.used_core_num) {
      EXPECT_EQ(costs.value()[core], cost) << "core " << core;
    }
  }
  for (size_t row = 0; row < times.size(); ++row) EXPECT_EQ(times[row], 1) << "row " << row;
}

// What docs/metadata.md says of words 0..4, and nothing else.
void ExpectCyclicReaderCoversEveryRowOnce(const Metadata& metadata) {
  int32_t words[kMetadataWords];
  std::memcpy(words, &metadata, sizeof(words));
  const int64_t total = words[0];
  std::vector<int> times(total, 0);
  const int64_t num_cores = total == 0 ? 0 : (total + words[3]) / words[1];
  int64_t counted = 0;
  for (int64_t core = 0; core < num_cores; ++core) {
    int64_t count = core < num_cores - words[3] ? words[1] : words[2];
    if (core >= words[4]) count = 0;
    for (int64_t i = 0; i < count; ++i) ++times.at(core + i * words[4]);
    counted += count;
  }
  EXPECT_EQ(counted, total);
  for (int64_t row = 0; row < total; ++row) EXPECT_EQ(times[row], 1) << "row " << row;
}

TEST(Plan, CoversEveryRowOnceForAllSmallBatches) {
  constexpr int kMaxLength = 5;
  for (int64_t mask_mode : {0, 3}) {
    for (int64_t cmp_ratio : {1, 2, 3}) {
      // Lengths of up to three sequences as digits; the third only with few of the others.
      for (int code = 0; code < 6 * 6 * 6 * 6 * 4; ++code) {
        RaggedBatch batch;
        batch.mask_mode = mask_mode;
        batch.cmp_ratio = cmp_ratio;
        const int residual = code % 3 % static_cast<int>(cmp_ratio);
        batch.Add(code % 6, code / 6 % 6, residual);
        if (code / 1296 > 0) batch.Add(code / 36 % 6, code / 216 % 6, residual);
        if (code / 1296 > 1) batch.Add(code / 1296 + 1, kMaxLength - code % 6, residual);
        const int64_t num_cores = 1 + code % 7 % 6;
        const MetadataArgs args = batch.Args(num_cores);
        const Metadata metadata = MakeRecord(args);
        const Problem problem = MakeProblem(args);
        EXPECT_TRUE(ValidateMetadata(metadata, problem).ok());
        ExpectCoversEveryRowOnce(metadata, problem);
        ExpectCyclicReaderCoversEveryRowOnce(metadata);
        for (DealingLaw law : {DealingLaw::kCyclic, DealingLaw::kSnake, DealingLaw::kLevelled}) {
          ExpectCoversEveryRowOnce(WithLaw(metadata, law), problem);
        }
        if (HasFailure())
          FAIL() << "mask " << mask_mode << " ratio " << cmp_ratio << " code " << code;
      }
    }
  }
}

TEST(Plan, CoversEveryRowOnceForLargeBatches) {
  std::mt19937 generator(20);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const auto below = [&](int64_t bound) { return static_cast<int64_t>(generator() % bound); };
    RaggedBatch batch;
    batch.cmp_ratio = 1 + below(4);
    const int64_t num_sequences = 1 + below(40);
    for (int64_t i = 0; i < num_sequences; ++i) {
      batch.Add(below(400), below(repeat % 2 == 0 ? 600 : 30000), below(batch.cmp_ratio));
    }
    const int64_t num_cores = 1 + below(64);
    const MetadataArgs args = batch.Args(num_cores);
    const Problem problem = MakeProblem(args);
    const Metadata metadata = MakeRecord(args);
    ExpectCoversEveryRowOnce(metadata, problem);
    ExpectCyclicReaderCoversEveryRowOnce(metadata);
    for (DealingLaw law : {DealingLaw::kSnake, DealingLaw::kLevelled}) {
      ExpectCoversEveryRowOnce(WithLaw(metadata, law), problem);
    }
    // Many rows to a core: the levelled law's second half.
    const MetadataArgs few_cores = batch.Args(2);
    ExpectCoversEveryRowOnce(WithLaw(MakeRecord(few_cores), DealingLaw::kLevelled), problem);
    if (HasFailure()) FAIL() << "repeat " << repeat;
  }
}

TEST(Plan, DealsRanksInSnakeOrder) {
  RaggedBatch batch;
  batch.Add(3, 3);  // rows 0..2 see 1, 2, 3 keys
  batch.Add(4, 4);  // rows 3..6 see 1, 2, 3, 4 keys
  const MetadataArgs args = batch.Args(3);
  const Problem problem = MakeProblem(args);
  const Metadata metadata = WithLaw(MakeRecord(args), DealingLaw::kSnake);
  // Ranks: row 6 (4 keys), 2, 5 (3), 1, 4 (2), 0, 3 (1), to cores 0 1 2, 2 1 0, 0.
  const std::vector<int64_t> expected[] = {{6, 0, 3}, {2, 4}, {5, 1}};
  for (int64_t core = 0; core < 3; ++core) {
    const Result<CoreRows> rows = RowsOfCore(metadata, problem, core);
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(std::vector<int64_t>(rows.value().begin(), rows.value().end()), expected[core]);
  }
  EXPECT_EQ(CoreOfRow(metadata, problem, 4).value(), 1);
}

TEST(Plan, LevelsHeavyAndLightRows) {
  RaggedBatch batch;
  batch.mask_mode = 0;
  batch.Add(3, 1000);  // three heavy rows on two cores
  batch.Add(2000, 4);
  const MetadataArgs args = batch.Args(2);
  const Problem problem = MakeProblem(args);
  const Metadata metadata = WithLaw(MakeRecord(args), DealingLaw::kLevelled);
  const Result<Plan> plan = Plan::Decode(metadata, problem);
  ASSERT_TRUE(plan.ok());
  const std::vector<int64_t> costs = plan.value().CostOfCores().value();
  EXPECT_EQ(costs[0] + costs[1], 3 * 1016 + 2000 * 20);
  EXPECT_LE(std::max(costs[0], costs[1]) - std::min(costs[0], costs[1]), 20);
}

TEST(Plan, AnswersQuestionsOutOfRangeWithAnError) {
  RaggedBatch batch;
  batch.Add(4, 4);
  const MetadataArgs args = batch.Args(2);
  const Problem problem = MakeProblem(args);
  const Metadata metadata = MakeRecord(args);
  EXPECT_EQ(RowsOfCore(metadata, problem, -1).status().message(), "core: expected >= 0, got -1");
  EXPECT_EQ(RowsOfCore(metadata, problem, 5).value().size(), 0);
  EXPECT_EQ(CoreOfRow(metadata, problem, 4).status().message(), "row: expected in [0, 4), got 4");
  Metadata wrong = metadata;
  wrong.total_size = 5;
  EXPECT_EQ(RowsOfCore(wrong, problem, 0).status().code(), StatusCode::kInvalidArgument);
}

TEST(Plan, RefusesExtensionsThatAreNotOurs) {
  RaggedBatch batch;
  batch.Add(40, 400);
  const MetadataArgs args = batch.Args(3);
  const Problem problem = MakeProblem(args);
  const Metadata good = WithLaw(MakeRecord(args), DealingLaw::kLevelled);
  ASSERT_TRUE(ValidateMetadata(good, problem).ok());
  const auto expect_word = [&](auto change, const char* word) {
    Metadata metadata = good;
    change(metadata);
    const Status status = ValidateMetadata(metadata, problem);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().substr(0, status.message().find(':')), word);
  };
  expect_word([](Metadata& m) { m.extension_tag = 1; }, "metadata[6]");
  expect_word([](Metadata& m) { m.extension_tag = 0; }, "metadata[7]");
  expect_word([](Metadata& m) { m.extension_version = 2; }, "metadata[7]");
  expect_word([](Metadata& m) { m.law = 3; }, "metadata[8]");
  expect_word([](Metadata& m) { m.law = -1; }, "metadata[8]");
  expect_word([](Metadata& m) { m.pair_cost = 0; }, "metadata[9]");
  expect_word([](Metadata& m) { m.row_overhead = 0; }, "metadata[10]");
  expect_word([](Metadata& m) { m.reserved[0] = 1; }, "metadata[11]");
  expect_word([](Metadata& m) { m.reserved[52] = -7; }, "metadata[63]");
}

TEST(Plan, RefusesCostsWhoseSumOverflows) {
  MetadataArgs args;
  args.num_heads_q = 1;
  args.num_heads_k = 1;
  args.head_dim = 128;
  args.batch_size = 1;
  args.max_seqlen_q = INT32_MAX;
  args.max_seqlen_k = INT32_MAX;
  args.num_cores = 8;
  const Problem problem = MakeProblem(args);
  Metadata metadata = WithLaw(MakeRecord(args), DealingLaw::kCyclic);
  EXPECT_TRUE(ValidateMetadata(metadata, problem).ok());
  metadata.pair_cost = 3;
  EXPECT_FALSE(ValidateMetadata(metadata, problem).ok());
}

}  // namespace
}  // namespace kindling
