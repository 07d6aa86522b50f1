#include "plan/split.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "support/random.h"

namespace kindling {
namespace {

constexpr int64_t kInt32Max = 2147483647;

using Words = std::array<int64_t, 4>;

Words WordsOneToFour(const Metadata& record) {
  return {record.former_core_size, record.remain_core_size, record.remain_core_num,
          record.used_core_num};
}

// Words 1..4 for every row count and core count of the specification's section 6.
TEST(SplitRows, SpecificationTable) {
  constexpr int64_t kCores[] = {8, 20, 24, 25, 32, 36};
  const struct {
    int64_t num_rows;
    Words words[6];
  } table[] = {
      {0, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}},
      {1,
       {{1, 0, 7, 1}, {1, 0, 19, 1}, {1, 0, 23, 1}, {1, 0, 24, 1}, {1, 0, 31, 1}, {1, 0, 35, 1}}},
      {16,
       {{2, 1, 0, 8}, {1, 0, 4, 16}, {1, 0, 8, 16}, {1, 0, 9, 16}, {1, 0, 16, 16}, {1, 0, 20, 16}}},
      {24,
       {{3, 2, 0, 8}, {2, 1, 16, 20}, {1, 0, 0, 24}, {1, 0, 1, 24}, {1, 0, 8, 24}, {1, 0, 12, 24}}},
      {25,
       {{4, 3, 7, 8},
        {2, 1, 15, 20},
        {2, 1, 23, 24},
        {1, 0, 0, 25},
        {1, 0, 7, 25},
        {1, 0, 11, 25}}},
      {511,
       {{64, 63, 1, 8},
        {26, 25, 9, 20},
        {22, 21, 17, 24},
        {21, 20, 14, 25},
        {16, 15, 1, 32},
        {15, 14, 29, 36}}},
      {2048,
       {{256, 255, 0, 8},
        {103, 102, 12, 20},
        {86, 85, 16, 24},
        {82, 81, 2, 25},
        {64, 63, 0, 32},
        {57, 56, 4, 36}}},
  };
  for (const auto& [num_rows, words] : table) {
    for (int column = 0; column < 6; ++column) {
      const Metadata record = SplitRows(num_rows, kCores[column], 77);
      EXPECT_EQ(record.total_size, num_rows);
      EXPECT_EQ(WordsOneToFour(record), words[column])
          << "T " << num_rows << " C " << kCores[column];
      EXPECT_EQ(record.max_seq_k, 77);
    }
  }
}

TEST(SplitRows, ReservedWordsAreZero) {
  const Metadata record = SplitRows(1000, 7, 5);
  EXPECT_EQ(record.extension_tag, 0);
  EXPECT_EQ(record.extension_version, 0);
  EXPECT_EQ(record.law, 0);
  EXPECT_EQ(record.pair_cost, 0);
  EXPECT_EQ(record.row_overhead, 0);
  for (const int32_t word : record.reserved) EXPECT_EQ(word, 0);
}

// Deals the rows out one by one, as the words say, and counts how often each is dealt.
TEST(SplitRows, DealsEveryRowOnce) {
  for (int64_t num_rows = 0; num_rows <= 60; ++num_rows) {
    for (int64_t num_cores = 1; num_cores <= 70; ++num_cores) {
      const auto [former, remain, num_remain, used] =
          WordsOneToFour(SplitRows(num_rows, num_cores, 0));
      std::vector<int> times(num_rows, 0);
      for (int64_t core = 0; core < used; ++core) {
        const int64_t size = core < num_cores - num_remain ? former : remain;
        for (int64_t i = 0; i < size; ++i) {
          ASSERT_LT(core + i * used, num_rows) << "T " << num_rows << " C " << num_cores;
          ++times[core + i * used];
        }
      }
      for (int64_t row = 0; row < num_rows; ++row) {
        ASSERT_EQ(times[row], 1) << "T " << num_rows << " C " << num_cores << " row " << row;
      }
    }
  }
}

void ExpectIdentities(int64_t num_rows, int64_t num_cores) {
  const Metadata record = SplitRows(num_rows, num_cores, 0);
  const auto [former, remain, num_remain, used] = WordsOneToFour(record);
  const auto sizes = [&] {
    return "T " + std::to_string(num_rows) + " C " + std::to_string(num_cores);
  };
  ASSERT_EQ(record.total_size, num_rows) << sizes();
  ASSERT_EQ((num_cores - num_remain) * former + num_remain * remain, num_rows) << sizes();
  ASSERT_EQ(remain, former - 1) << sizes();
  ASSERT_GE(num_remain, 0) << sizes();
  ASSERT_LT(num_remain, num_cores) << sizes();
  ASSERT_EQ(used, num_rows < num_cores ? num_rows : num_cores) << sizes();
  // The smallest number of rows that lets all cores together take them all.
  ASSERT_GE(former * num_cores, num_rows) << sizes();
  ASSERT_LT(remain * num_cores, num_rows) << sizes();
}

TEST(SplitRows, SharesAddUpForAnySizes) {
  for (int64_t num_rows = 1; num_rows <= 300; ++num_rows) {
    for (int64_t num_cores = 1; num_cores <= 300; ++num_cores) {
      ASSERT_NO_FATAL_FAILURE(ExpectIdentities(num_rows, num_cores));
    }
  }
  test::Random random(test::RunningTest());
  const auto size = [&] {
    switch (random.Below(3)) {
      case 0:
        return 1 + random.Below(kInt32Max);
      case 1:
        return 1 + random.Below(5000);
      default:
        return kInt32Max - random.Below(4);
    }
  };
  for (int repeat = 0; repeat < 30000; ++repeat) {
    const int64_t num_rows = size();
    ASSERT_NO_FATAL_FAILURE(ExpectIdentities(num_rows, size()));
  }
}

TEST(SplitRows, LargestRecords) {
  EXPECT_EQ(WordsOneToFour(SplitRows(kInt32Max, 1, kInt32Max)),
            (Words{kInt32Max, kInt32Max - 1, 0, 1}));
  EXPECT_EQ(SplitRows(kInt32Max, 1, kInt32Max).max_seq_k, kInt32Max);
  EXPECT_EQ(WordsOneToFour(SplitRows(kInt32Max, 2, 0)), (Words{1 << 30, (1 << 30) - 1, 1, 2}));
  EXPECT_EQ(WordsOneToFour(SplitRows(kInt32Max, kInt32Max, 0)), (Words{1, 0, 0, kInt32Max}));
  EXPECT_EQ(WordsOneToFour(SplitRows(kInt32Max, kInt32Max - 1, 0)),
            (Words{2, 1, kInt32Max - 2, kInt32Max - 1}));
  EXPECT_EQ(WordsOneToFour(SplitRows(1, kInt32Max, 0)), (Words{1, 0, kInt32Max - 1, 1}));
}

}  // namespace
}  // namespace kindling
