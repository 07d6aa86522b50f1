// The visible-key formula of src/problem/lengths.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/property.h"
#include "problem/lengths.h"
#include "problem/lengths_case.h"

namespace kindling {
namespace {

constexpr int64_t kInt32Max = 2147483647;

struct Batch {
  int64_t num_rows, num_keys, ratio, residual;
};

std::vector<int64_t> VisibleKeys(const Batch& batch) {
  std::vector<int64_t> visible;
  for (int64_t s = 0; s < batch.num_rows; ++s) {
    visible.push_back(
        CausalVisibleKeys(batch.num_keys, batch.ratio, batch.residual, batch.num_rows, s));
  }
  return visible;
}

// Expands {{value, times}, ...}.
std::vector<int64_t> Runs(const std::vector<std::pair<int64_t, int64_t>>& runs) {
  std::vector<int64_t> out;
  for (const auto& [value, times] : runs) out.insert(out.end(), times, value);
  return out;
}

// The table of the specification, section 2.
TEST(CausalVisibleKeys, SpecificationTable) {
  EXPECT_EQ(VisibleKeys({16, 4, 1, 0}), Runs({{0, 12}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}));
  EXPECT_EQ(VisibleKeys({32, 8, 4, 0}),
            Runs({{0, 3}, {1, 4}, {2, 4}, {3, 4}, {4, 4}, {5, 4}, {6, 4}, {7, 4}, {8, 1}}));
  EXPECT_EQ(VisibleKeys({18, 4, 4, 2}), Runs({{0, 3}, {1, 4}, {2, 4}, {3, 4}, {4, 3}}));
  EXPECT_EQ(VisibleKeys({10, 3, 4, 1}), Runs({{1, 4}, {2, 4}, {3, 2}}));
  EXPECT_EQ(VisibleKeys({13, 4, 4, 2}), Runs({{1, 2}, {2, 4}, {3, 4}, {4, 3}}));
  EXPECT_EQ(VisibleKeys({8, 3, 4, 3}), Runs({{2, 4}, {3, 4}}));

  std::vector<std::pair<int64_t, int64_t>> long_runs = {{3008, 3}};
  for (int64_t n = 3009; n <= 3047; ++n) long_runs.push_back({n, 13});
  long_runs.push_back({3048, 1});
  EXPECT_EQ(VisibleKeys({511, 3048, 13, 0}), Runs(long_runs));
}

TEST(CausalVisibleKeys, EqualsCountingOnAllSmallBatches) {
  for (int64_t ratio = 1; ratio <= 5; ++ratio) {
    for (int64_t residual = 0; residual < ratio; ++residual) {
      for (int64_t num_keys = 0; num_keys <= 9; ++num_keys) {
        for (int64_t num_rows = 1; num_rows <= 40; ++num_rows) {
          for (int64_t s = 0; s < num_rows; ++s) {
            ASSERT_EQ(CausalVisibleKeys(num_keys, ratio, residual, num_rows, s),
                      test::CountCausalKeys(num_keys, ratio, residual, num_rows, s))
                << "uq " << num_rows << " uk " << num_keys << " r " << ratio << " res " << residual
                << " s " << s;
          }
        }
      }
    }
  }
}

// floor and clamp by other means: the quotients are below 2^39, so that rounding the exact one to
// double cannot carry it over a multiple of 1/128.
TEST(CausalVisibleKeys, EqualsFloorAndClampOnLargeBatches) {
  test::CheckProperty(
      [] {
        const auto length =
            rc::gen::oneOf(rc::gen::inRange<int64_t>(1, kInt32Max + 1),
                           rc::gen::inRange<int64_t>(1, 5000), rc::gen::just(kInt32Max));
        const int64_t num_rows = *length;
        const int64_t num_keys = *length;
        const auto ratio = *rc::gen::inRange<int64_t>(1, 129);
        const auto residual = *rc::gen::inRange<int64_t>(0, ratio);
        const auto s =
            *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, num_rows),
                            rc::gen::just<int64_t>(num_rows - 1), rc::gen::just<int64_t>(0));
        const auto tokens = static_cast<double>(num_keys * ratio + residual - num_rows + s + 1);
        const double expected = std::clamp(std::floor(tokens / static_cast<double>(ratio)), 0.0,
                                           static_cast<double>(num_keys));
        const int64_t got = CausalVisibleKeys(num_keys, ratio, residual, num_rows, s);
        RC_ASSERT(static_cast<double>(got) == expected);
      },
      2000);
}

// Whatever the lengths, the last row sees every key, each row at least as much as the one before,
// and a key more at most every `ratio` rows.
TEST(CausalVisibleKeys, GrowsByOneKeyEveryRatioRows) {
  test::CheckProperty([] {
    const auto num_rows = *rc::gen::inRange<int64_t>(1, 300);
    const auto num_keys = *rc::gen::inRange<int64_t>(0, 100);
    const auto ratio = *rc::gen::inRange<int64_t>(1, 129);
    const auto residual = *rc::gen::inRange<int64_t>(0, ratio);
    const std::vector<int64_t> visible = VisibleKeys({num_rows, num_keys, ratio, residual});
    RC_ASSERT(visible.back() == num_keys);
    for (int64_t s = 1; s < num_rows; ++s) {
      RC_ASSERT(visible[s] >= visible[s - 1]);
      RC_ASSERT(visible[s] <= visible[s - 1] + 1);
      if (s >= ratio && visible[s - ratio] > 0 && visible[s] < num_keys) {
        RC_ASSERT(visible[s] == visible[s - ratio] + 1);
      }
    }
  });
}

}  // namespace
}  // namespace kindling
