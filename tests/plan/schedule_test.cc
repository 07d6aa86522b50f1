#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "problem/lengths_case.h"
#include "support/random.h"

namespace kindling {
namespace {

using test::LengthsCase;

constexpr TileShape kShape{4, 8, 8};
constexpr int64_t kKeysPerSpan = 16;

std::vector<int32_t> PrefixSums(const std::vector<int32_t>& lengths) {
  std::vector<int32_t> sums(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);
  return sums;
}

// Causal, so that row i of n sees the keys up to the i + 1 - n last.
Problem Create(const std::vector<int32_t>& num_rows, const std::vector<int32_t>& num_keys) {
  LengthsCase lengths;
  lengths.cu_q = PrefixSums(num_rows);
  lengths.cu_k = PrefixSums(num_keys);
  lengths.mask_mode = 3;
  return Problem::Create(lengths.Args()).value();
}

TEST(Schedule, DealsWholeBlocksToOneWorker) {
  const Tiling tiling(Create({6}, {100}), kShape);
  const Schedule schedule(tiling, kKeysPerSpan, 1);
  EXPECT_FALSE(schedule.splits_blocks());
  ASSERT_EQ(schedule.num_units(), 2);
  EXPECT_EQ(schedule.At(1).block, 1);
  EXPECT_EQ(schedule.At(1).span_begin, 0);
  EXPECT_GE(schedule.At(1).span_end, 7);
}

TEST(Schedule, SplitsFewBlocks) {
  // Last rows first: rows 4 and 5 see up to 100 keys, rows 0 to 3 up to 98.
  const Tiling tiling(Create({6}, {100}), kShape);
  const Schedule schedule(tiling, kKeysPerSpan, 2);
  EXPECT_TRUE(schedule.splits_blocks());
  ASSERT_EQ(schedule.num_units(), 14);
  EXPECT_EQ(schedule.FirstUnit(0), 0);
  EXPECT_EQ(schedule.FirstUnit(1), 7);
  for (int64_t unit = 0; unit < 14; ++unit) {
    EXPECT_EQ(schedule.At(unit).block, unit / 7);
    EXPECT_EQ(schedule.At(unit).span_begin, unit % 7);
    EXPECT_EQ(schedule.At(unit).span_end, unit % 7 + 1);
  }
}

TEST(Schedule, DoesNotSplitEnoughBlocks) {
  const Tiling tiling(Create({13}, {100}), kShape);  // 4 blocks
  EXPECT_FALSE(Schedule(tiling, kKeysPerSpan, 2).splits_blocks());
  EXPECT_TRUE(Schedule(tiling, kKeysPerSpan, 3).splits_blocks());
}

TEST(Schedule, DoesNotSplitBlocksOfOneSpan) {
  const Tiling tiling(Create({2}, {16}), kShape);
  EXPECT_FALSE(Schedule(tiling, kKeysPerSpan, 64).splits_blocks());
}

TEST(Schedule, AnEmptyProblemHasNoUnits) {
  const Tiling tiling(Create({0, 0}, {5, 0}), kShape);
  EXPECT_EQ(Schedule(tiling, kKeysPerSpan, 8).num_units(), 0);
}

// Every span of every block once, in the order that waiting rests on; a block without visible keys
// is one unit too.
TEST(Schedule, CoversEverySpanInOrder) {
  test::Random random(test::RunningTest());
  for (int repeat = 0; repeat < 500; ++repeat) {
    std::vector<int32_t> num_rows(1 + random.Below(4));
    std::vector<int32_t> num_keys(num_rows.size());
    for (int32_t& rows : num_rows) rows = static_cast<int32_t>(random.Below(12));
    for (int32_t& keys : num_keys) keys = static_cast<int32_t>(random.Below(90));
    const Tiling tiling(Create(num_rows, num_keys), kShape);
    const Schedule schedule(tiling, kKeysPerSpan, 1 + random.Below(9));
    int64_t unit = 0;
    for (int64_t block = 0; block < tiling.num_blocks(); ++block) {
      const int64_t num_keys_seen = tiling.MostVisibleKeys(tiling.Block(block));
      const int64_t num_spans =
          std::max<int64_t>(1, (num_keys_seen + kKeysPerSpan - 1) / kKeysPerSpan);
      if (schedule.splits_blocks()) {
        ASSERT_EQ(schedule.FirstUnit(block), unit);
      }
      for (int64_t span = 0; span < num_spans;) {
        ASSERT_LT(unit, schedule.num_units());
        const Unit got = schedule.At(unit++);
        ASSERT_EQ(got.block, block);
        ASSERT_EQ(got.span_begin, span);
        ASSERT_GT(got.span_end, span);
        span = got.span_end;
      }
    }
    ASSERT_EQ(unit, schedule.num_units());
  }
}

}  // namespace
}  // namespace kindling
