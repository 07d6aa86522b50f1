// Rows that row_scale switches off.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct SwitchedOff {
  // Switches off rows at random, or all of them, or all but those of the first half.
  SwitchedOff(Case with_scale, Random& random) : problem(with_scale) {
    const int64_t kind = random.Below(4);
    for (const RowPlace& place : UsedRows(with_scale)) {
      const bool off = kind == 0   ? true
                       : kind == 1 ? 2 * place.position >= with_scale.num_rows[place.batch]
                                   : random.Below(2) == 0;
      if (!off || place.num_visible == 0) continue;
      problem.row_scale.Set(place.row, random.Below(2) == 0 ? 0.0 : -0.0);
      rows.push_back(place);
    }
  }

  Indexer problem;
  std::vector<RowPlace> rows;
};

Case WithScale(Case spec) {
  spec.row_scale = true;
  return spec;
}

testing::AssertionResult SameGradients(const GradOutputs& got, const GradOutputs& want,
                                       const Case& spec) {
  testing::AssertionResult result = SameBits("dq", got.dq, want.dq, spec);
  if (result) result = SameBits("dk", got.dk, want.dk, spec);
  return result ? SameBits("dw", got.dw, want.dw, spec) : result;
}

// What a row that is switched off holds takes no part in any gradient, whether its loss and its
// softmax are asked for or not; and these are what they would be without row_scale.
testing::AssertionResult HoldsNothing(const Case& given) {
  const Case spec = WithScale(given);
  Random random(RunningTest());
  const SwitchedOff off(spec, random);
  Indexer poisoned = off.problem;
  const int64_t pair = spec.num_heads * spec.head_dim;
  for (const RowPlace& place : off.rows) {
    for (int64_t i = 0; i < pair; ++i) poisoned.q.Set(place.row * pair + i, kNan);
    for (int64_t head = 0; head < spec.num_heads; ++head) {
      poisoned.w.Set(place.row * spec.num_heads + head, kNan);
    }
    poisoned.lse.Set(place.row, kNan);
    poisoned.p.Set(place.row * Placement(spec).num_columns, kNan);
  }
  Indexer unscaled = off.problem;
  for (int64_t i = 0; i < unscaled.row_scale.size(); ++i) unscaled.row_scale.Set(i, 1.0);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const GradOutputs::Wanted neither{.softmax_out = false, .loss_rows = false};
    const GradOutputs all = RunKLLossGrad(off.problem, {}, {.num_threads = 2});
    const GradOutputs lean = RunKLLossGrad(off.problem, neither, {.num_threads = 3});
    testing::AssertionResult result = SameGradients(lean, all, spec);
    if (result) result = SameGradients(RunKLLossGrad(poisoned, neither), all, spec);
    if (result) result = SameGradients(RunKLLossGrad(poisoned), all, spec);
    const GradOutputs plain = RunKLLossGrad(unscaled);
    if (result) result = SameBits("softmax_out", all.softmax_out, plain.softmax_out, spec);
    if (result) result = SameBits("loss_rows", all.loss_rows, plain.loss_rows, spec);
    if (!result) return result << "\n  on " << IsaName(isa);
    for (const RowPlace& place : off.rows) {
      for (int64_t i = 0; i < pair; ++i) {
        if (all.dq.Bits(place.row * pair + i) != 0) {
          return testing::AssertionFailure() << "dq of row " << place.row << " is not 0";
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

TEST(RowScale, RowsThatAreOffHoldNothingAtTheEdges) { ForEachCase(EdgeCases(), HoldsNothing); }

TEST(RowScale, RowsThatAreOffHoldNothingInGeneratedCases) {
  ForGeneratedCases({.num_cases = 60}, HoldsNothing);
}

// Few rows over many keys, which several workers share span by span.
TEST(RowScale, RowsThatAreOffHoldNothingWhereBlocksAreSplit) {
  for (const int64_t num_heads : {3, 100}) {
    Case spec;
    spec.num_heads = num_heads;
    spec.head_dim = 8;
    spec.num_rows = {5};
    spec.num_keys = {5000};
    spec.mask_mode = MaskMode::kCausal;
    EXPECT_TRUE(HoldsNothing(spec));
  }
}

// Those that are on are the problem of these rows alone.
TEST(RowScale, GradientsAreThoseOfTheOtherRows) {
  Case spec;
  spec.layout_q = spec.layout_k = Layout::kTnd;
  spec.num_heads = 4;
  spec.head_dim = 16;
  spec.num_rows = {40};
  spec.num_keys = {300};
  spec.row_scale = true;
  Indexer problem(spec);
  for (int64_t row = 0; row < 40; ++row) problem.row_scale.Set(row, row < 25 ? 0.0 : 1.0);
  Case rest = spec;
  rest.num_rows = {15};
  Indexer others(rest);
  const int64_t pair = spec.num_heads * spec.head_dim;
  const int64_t num_columns = Placement(spec).num_columns;
  for (int64_t row = 0; row < 15; ++row) {
    others.row_scale.Set(row, 1.0);
    others.lse.Set(row, problem.lse.Get(25 + row));
    for (int64_t i = 0; i < pair; ++i)
      others.q.Set(row * pair + i, problem.q.Get((25 + row) * pair + i));
    for (int64_t head = 0; head < spec.num_heads; ++head) {
      others.w.Set(row * spec.num_heads + head, problem.w.Get((25 + row) * spec.num_heads + head));
    }
    for (int64_t key = 0; key < 300; ++key) {
      others.p.Set(row * num_columns + key, problem.p.Get((25 + row) * num_columns + key));
    }
  }
  for (int64_t i = 0; i < others.k.size(); ++i) others.k.Set(i, problem.k.Get(i));
  const GradOutputs all = RunKLLossGrad(problem);
  const GradOutputs some = RunKLLossGrad(others);
  for (int64_t i = 0; i < 15 * pair; ++i) {
    ASSERT_EQ(all.dq.Bits(25 * pair + i), some.dq.Bits(i));
  }
  for (int64_t i = 0; i < all.dk.size(); ++i) ASSERT_EQ(all.dk.Bits(i), some.dk.Bits(i));
}

}  // namespace
}  // namespace kindling::test
