// SoftmaxLse against the reference, for every instruction set.
#include <gtest/gtest.h>

#include <string>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/error_bounds.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

testing::AssertionResult MatchesReference(const Case& spec) {
  const Indexer problem(spec);
  const LseOutputs want = ReferenceSoftmaxLse(problem);
  const LseBounds bounds = BoundSoftmaxLse(problem);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const LseOutputs got = RunSoftmaxLse(problem, {}, {.num_threads = 2});
    testing::AssertionResult result = Written("lse", got.lse, spec);
    if (result) result = Written("loss_rows", got.loss_rows, spec);
    if (result) result = Near("lse", got.lse, want.lse, bounds.lse, spec);
    if (result) {
      result = Near("loss_rows", got.loss_rows, want.loss_rows, bounds.loss_rows, spec);
    }
    // Without p there is no loss, and lse is the same.
    const LseOutputs alone = RunSoftmaxLse(problem, {.loss_rows = false}, {.num_threads = 2});
    if (result) result = SameBits(alone, got, spec);
    if (!result) return result << "\n  on " << IsaName(isa);
  }
  return testing::AssertionSuccess();
}

TEST(SoftmaxLse, MatchesTheReferenceAtTheEdges) { ForEachCase(EdgeCases(), MatchesReference); }

TEST(SoftmaxLse, MatchesTheReferenceOnGeneratedCases) {
  ForGeneratedCases({.num_cases = 150}, MatchesReference);
}

// Source: the value that the spec gives for the vendor's example.
TEST(SoftmaxLse, ConstantInputsGiveTheSpecsValue) {
  Case spec;
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.dtype = DType::kFloat16;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.num_rows = {5, 5};
  spec.num_keys = {256, 256};
  Indexer problem(spec);
  problem.q.Fill(0.2);
  problem.k.Fill(0.1);
  problem.w.Fill(0.005);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const OwnedTensor lse = RunSoftmaxLse(problem).lse;
    for (int64_t row = 0; row < lse.size(); ++row) EXPECT_NEAR(lse.Get(row), 5.6475274, 1e-6);
  }
}

TEST(SoftmaxLse, AcceptsTheTeacherWithoutLossRows) {
  Case spec;
  spec.num_rows = {3};
  spec.num_keys = {4};
  const Indexer problem(spec);
  LseOutputs outputs(problem, {.loss_rows = false});
  SoftmaxLseArgs args = MakeArgs(problem, outputs);
  args.p = problem.p.view();
  EXPECT_TRUE(SoftmaxLse(args).ok());
  EXPECT_TRUE(SameBits(outputs, RunSoftmaxLse(problem), spec));
}

// Logits of +-1000 would overflow without the maximum taken out first.
TEST(SoftmaxLse, LargeLogitsDoNotOverflow) {
  Case spec;
  spec.num_heads = 2;
  spec.head_dim = 8;
  spec.num_rows = {9};
  spec.num_keys = {300};
  Indexer problem(spec);
  for (int64_t i = 0; i < problem.w.size(); ++i) problem.w.Set(i, 1000 * problem.w.Get(i));
  const LseOutputs want = ReferenceSoftmaxLse(problem);
  const LseBounds bounds = BoundSoftmaxLse(problem);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const LseOutputs got = RunSoftmaxLse(problem);
    EXPECT_TRUE(Near("lse", got.lse, want.lse, bounds.lse, spec)) << IsaName(isa);
    EXPECT_TRUE(Near("loss_rows", got.loss_rows, want.loss_rows, bounds.loss_rows, spec))
        << IsaName(isa);
  }
}

TEST(TotalLoss, AddsInAscendingOrderInDouble) {
  const float rows[] = {1e8f, 1.0f, -1e8f, 0.25f};
  EXPECT_EQ(TotalLoss(rows, 4), 1.25);
  EXPECT_EQ(TotalLoss(rows, 0), 0.0);
  EXPECT_EQ(TotalLoss(nullptr, 0), 0.0);
}

}  // namespace
}  // namespace kindling::test
