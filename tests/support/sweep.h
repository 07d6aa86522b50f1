// Many cases: a fixed list around the sizes where code paths change, and generated ones.
#ifndef KINDLING_TESTS_SUPPORT_SWEEP_H_
#define KINDLING_TESTS_SUPPORT_SWEEP_H_

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "support/case.h"

namespace kindling::test {

using CheckCase = std::function<testing::AssertionResult(const Case&)>;

// Keys, heads, widths and row counts one less than, equal to and one more than vectors, tiles,
// blocks and chunks; ragged batches with empty sides; all layouts, masks, dtypes and spreads.
// `num_key_heads` of every case is 1.
std::vector<Case> EdgeCases();

// Runs `check` on every case and records a failure for each that does not hold. The seed of a case
// becomes the running test's name. If the environment has KINDLING_CASE, runs on that case only:
// every failure prints such a command.
void ForEachCase(std::vector<Case> cases, const CheckCase& check);

// Which cases to generate.
struct CaseRange {
  int num_cases = 50;
  int64_t max_multiply_adds = 300'000;
  // The teacher's num_key_heads is num_heads over one of them, or 1 where that does not divide.
  std::vector<int64_t> key_head_divisors = {1};
};

// Runs `check` on generated cases, seeded from the running test's name; a failing one is made as
// small as possible first. KINDLING_CASE as above.
void ForGeneratedCases(const CaseRange& range, const CheckCase& check);

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_SWEEP_H_
