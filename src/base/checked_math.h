// Integer arithmetic on sizes that a caller chose.
#ifndef KINDLING_SRC_BASE_CHECKED_MATH_H_
#define KINDLING_SRC_BASE_CHECKED_MATH_H_

#include <cstdint>
#include <limits>

namespace kindling {

inline constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

// a * b for non-negative factors, kInt64Max where that does not fit.
constexpr int64_t SaturatingMul(int64_t a, int64_t b) {
  return (a != 0 && b > kInt64Max / a) ? kInt64Max : a * b;
}

// a + b for non-negative terms, kInt64Max where that does not fit.
constexpr int64_t SaturatingAdd(int64_t a, int64_t b) {
  return a > kInt64Max - b ? kInt64Max : a + b;
}

// ceil(a / b). Requires: a >= 0, b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The smallest multiple of `unit` that is >= a. Requires: a >= 0, unit > 0, no overflow.
constexpr int64_t RoundUp(int64_t a, int64_t unit) { return CeilDiv(a, unit) * unit; }

// RoundUp, kInt64Max where that does not fit. Requires: a >= 0, unit > 0.
constexpr int64_t SaturatingRoundUp(int64_t a, int64_t unit) {
  return a > kInt64Max - unit ? kInt64Max : RoundUp(a, unit);
}

// floor(a / b) for any a. Requires: b > 0.
constexpr int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b < 0); }

}  // namespace kindling

#endif  // KINDLING_SRC_BASE_CHECKED_MATH_H_
