#include "base/checked_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/property.h"

namespace kindling {
namespace {

using Wide = __int128;

int64_t Saturate(Wide value) { return static_cast<int64_t>(std::min<Wide>(value, kInt64Max)); }

// Any non-negative int64, small and huge ones alike.
rc::Gen<int64_t> NonNegative() {
  return rc::gen::map(
      rc::gen::pair(rc::gen::arbitrary<uint64_t>(), rc::gen::inRange(1, 64)),
      [](const auto& pair) { return static_cast<int64_t>(pair.first >> pair.second); });
}

TEST(SaturatingMul, StopsAtTheLargest) {
  static_assert(SaturatingMul(0, kInt64Max) == 0);
  static_assert(SaturatingMul(kInt64Max, 0) == 0);
  static_assert(SaturatingMul(kInt64Max, 1) == kInt64Max);
  static_assert(SaturatingMul(1, kInt64Max) == kInt64Max);
  static_assert(SaturatingMul(int64_t{1} << 31, int64_t{1} << 31) == int64_t{1} << 62);
  static_assert(SaturatingMul(int64_t{1} << 31, int64_t{1} << 32) == kInt64Max);
  static_assert(SaturatingMul(kInt64Max / 7, 7) == kInt64Max / 7 * 7);
  static_assert(SaturatingMul(kInt64Max / 7 + 1, 7) == kInt64Max);
  static_assert(SaturatingMul(kInt64Max, kInt64Max) == kInt64Max);
}

TEST(SaturatingMul, EqualsWideArithmetic) {
  test::CheckProperty(
      [] {
        const int64_t a = *NonNegative();
        const int64_t b = *NonNegative();
        RC_ASSERT(SaturatingMul(a, b) == Saturate(static_cast<Wide>(a) * b));
      },
      2000);
}

TEST(SaturatingAdd, StopsAtTheLargest) {
  static_assert(SaturatingAdd(0, 0) == 0);
  static_assert(SaturatingAdd(kInt64Max, 0) == kInt64Max);
  static_assert(SaturatingAdd(kInt64Max - 1, 1) == kInt64Max);
  static_assert(SaturatingAdd(kInt64Max - 1, 2) == kInt64Max);
  static_assert(SaturatingAdd(kInt64Max - 2, 1) == kInt64Max - 1);
  static_assert(SaturatingAdd(kInt64Max, kInt64Max) == kInt64Max);
}

TEST(SaturatingAdd, EqualsWideArithmetic) {
  test::CheckProperty(
      [] {
        const int64_t a = *NonNegative();
        const int64_t b = *NonNegative();
        RC_ASSERT(SaturatingAdd(a, b) == Saturate(static_cast<Wide>(a) + b));
      },
      2000);
}

// The definitions: quotients are the largest, or smallest, whole number on the right side of a / b.
TEST(Division, SmallNumbers) {
  for (int64_t a = -40; a <= 40; ++a) {
    for (int64_t b = 1; b <= 13; ++b) {
      const int64_t floor = FloorDiv(a, b);
      ASSERT_LE(floor * b, a) << a << " / " << b;
      ASSERT_GT((floor + 1) * b, a) << a << " / " << b;
      if (a < 0) continue;
      const int64_t ceil = CeilDiv(a, b);
      ASSERT_GE(ceil * b, a) << a << " / " << b;
      ASSERT_LT((ceil - 1) * b, a) << a << " / " << b;
      ASSERT_EQ(RoundUp(a, b), ceil * b) << a << " / " << b;
    }
  }
}

TEST(Division, LargeNumbers) {
  static_assert(CeilDiv(kInt64Max, 1) == kInt64Max);
  static_assert(CeilDiv(kInt64Max, kInt64Max) == 1);
  static_assert(CeilDiv(kInt64Max, 2) == int64_t{1} << 62);
  static_assert(CeilDiv(kInt64Max - 1, kInt64Max) == 1);
  static_assert(RoundUp(kInt64Max - 63, 64) == kInt64Max - 63);
  static_assert(RoundUp(kInt64Max - 126, 64) == kInt64Max - 63);
  static_assert(FloorDiv(kInt64Max, 2) == (int64_t{1} << 62) - 1);
  static_assert(FloorDiv(std::numeric_limits<int64_t>::min(), 2) == -(int64_t{1} << 62));
  static_assert(FloorDiv(std::numeric_limits<int64_t>::min() + 1, 2) == -(int64_t{1} << 62));
  static_assert(FloorDiv(-1, kInt64Max) == -1);
}

TEST(Limits, AreTheTypes) {
  static_assert(kInt32Max == 2147483647);
  static_assert(kInt64Max == 9223372036854775807);
}

}  // namespace
}  // namespace kindling
