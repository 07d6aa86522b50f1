// AttentionL1Norm, the teacher, against the reference, for every instruction set.
#include <gtest/gtest.h>

#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/error_bounds.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

testing::AssertionResult MatchesReference(const Case& spec) {
  for (const Teacher::Lse lse : {Teacher::Lse::kGiven, Teacher::Lse::kAbsent}) {
    const Teacher problem(spec, lse);
    const OwnedTensor want = ReferenceAttentionL1Norm(problem);
    const Bounds bounds = BoundAttentionL1Norm(problem);
    for (const Isa isa : TestedIsas()) {
      const ScopedIsa forced(isa);
      const OwnedTensor got = RunAttentionL1Norm(problem, {.num_threads = 2});
      testing::AssertionResult result = Written("p", got, spec);
      if (result) result = Near("p", got, want, bounds, spec);
      if (!result) {
        return result << "\n  on " << IsaName(isa)
                      << (lse == Teacher::Lse::kGiven ? ", lse given" : ", no lse");
      }
    }
  }
  return testing::AssertionSuccess();
}

// The cases of the sweep with one key head, one per query head (MHA) and groups (GQA) in turn.
std::vector<Case> TeacherEdgeCases() {
  std::vector<Case> cases = EdgeCases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const int64_t num_heads = cases[i].num_heads;
    if (i % 3 == 1) cases[i].num_key_heads = num_heads;
    if (i % 3 == 2 && num_heads % 2 == 0) cases[i].num_key_heads = num_heads / 2;
  }
  return cases;
}

TEST(AttentionL1Norm, MatchesTheReferenceAtTheEdges) {
  ForEachCase(TeacherEdgeCases(), MatchesReference);
}

TEST(AttentionL1Norm, MatchesTheReferenceOnGeneratedCases) {
  ForGeneratedCases({.num_cases = 100, .key_head_divisors = {1, 2, 3, 4, 40, 300}},
                    MatchesReference);
}

Case SmallCase() {
  Case spec;
  spec.num_heads = 4;
  spec.num_key_heads = 2;
  spec.head_dim = 8;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_rows = {40, 3};
  spec.num_keys = {300, 5};
  return spec;
}

TEST(AttentionL1Norm, RowsSumToOneWithoutLse) {
  const Case spec = SmallCase();
  const OwnedTensor p = RunAttentionL1Norm(Teacher(spec, Teacher::Lse::kAbsent));
  for (const RowPlace& place : UsedRows(spec)) {
    double sum = 0.0;
    for (int64_t j = 0; j < p.shape().back(); ++j) {
      sum += p.Get(place.row * p.shape().back() + j);
    }
    EXPECT_NEAR(sum, place.num_visible > 0 ? 1.0 : 0.0, 1e-6) << "row " << place.row;
  }
}

// Query head g reads key head g * Gk / G: heads 0, 1 the first and 2, 3 the second.
TEST(AttentionL1Norm, GroupsShareTheirKeyHead) {
  Case spec;
  spec.num_heads = 4;
  spec.num_key_heads = 2;
  spec.head_dim = 1;
  spec.num_rows = {1};
  spec.num_keys = {2};
  Teacher problem(spec, Teacher::Lse::kAbsent);
  problem.q.Fill(1.0);
  // Each key head attends to one key alone.
  const double keys[] = {100, 0, 0, 100};  // [key][key head]
  for (int64_t i = 0; i < 4; ++i) problem.k.Set(i, keys[i]);
  // Head 3 attends to nothing in particular.
  problem.q.Set(3, 0.0);
  const OwnedTensor p = RunAttentionL1Norm(problem);
  EXPECT_FLOAT_EQ(p.Get(0), (1 + 1 + 0 + 0.5) / 4);
  EXPECT_FLOAT_EQ(p.Get(1), (0 + 0 + 1 + 0.5) / 4);
}

TEST(AttentionL1Norm, AddingToLseScalesTheTeacher) {
  Teacher problem(SmallCase(), Teacher::Lse::kGiven);
  const OwnedTensor before = RunAttentionL1Norm(problem);
  // Adding ln 2 to every head's lse halves every probability.
  for (int64_t i = 0; i < problem.lse.size(); ++i) {
    problem.lse.Set(i, problem.lse.Get(i) + 0.69314718);
  }
  const OwnedTensor after = RunAttentionL1Norm(problem);
  for (int64_t i = 0; i < after.size(); ++i) {
    EXPECT_NEAR(after.Get(i), before.Get(i) / 2, 1e-6 * before.Get(i));
  }
}

AttentionL1NormArgs ArgsOf(const Teacher& problem) {
  static OwnedTensor unused;
  return MakeArgs(problem, unused);
}

TEST(TeacherStride, IsS2WhereBothLayoutsAreDense) {
  Case spec = SmallCase();
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.spare_keys = 7;
  const Teacher problem(spec, Teacher::Lse::kAbsent);
  EXPECT_EQ(TeacherStride(ArgsOf(problem), 0).value(), 307);
  EXPECT_EQ(TeacherStride(ArgsOf(problem), 1000).value(), 307);
}

TEST(TeacherStride, IsTheCallersChoiceOrTheLongestAllocation) {
  Case spec = SmallCase();
  spec.spare_keys = 7;
  const Teacher problem(spec, Teacher::Lse::kAbsent);
  EXPECT_EQ(TeacherStride(ArgsOf(problem), 0).value(), 307);
  EXPECT_EQ(TeacherStride(ArgsOf(problem), 300).value(), 300);
  EXPECT_EQ(TeacherStride(ArgsOf(problem), 1000).value(), 1000);

  const Result<int64_t> too_small = TeacherStride(ArgsOf(problem), 299);
  EXPECT_EQ(too_small.status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(too_small.status().message().starts_with("max_seqlen_k: "));
  EXPECT_TRUE(TeacherStride(ArgsOf(problem), -1).status().message().starts_with("max_seqlen_k: "));
  Teacher broken = problem;
  broken.softmax_scale = 1.0 / 0.0;
  EXPECT_TRUE(TeacherStride(ArgsOf(broken), 0).status().message().starts_with("softmax_scale: "));
}

}  // namespace
}  // namespace kindling::test
