// A NaN or an infinity reaches what arithmetic takes it to, and changes no bit of anything else:
// the reference says what is reached, a run on finite inputs what everything else is.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kindling/operators.h"
#include "support/build_kind.h"
#include "support/compare.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/random.h"

namespace kindling::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kPoisons[] = {kNan, kInfinity, -kInfinity};

// A result on finite inputs and on inputs with one bad element, from an operator and the reference.
struct FourResults {
  const OwnedTensor& clean;
  const OwnedTensor& poisoned;
  const OwnedTensor& exact_clean;
  const OwnedTensor& exact_poisoned;
};

// `num_reached` counts elements that are not finite any more.
testing::AssertionResult ReachesWhatItShould(std::string_view name, const FourResults& results,
                                             int64_t& num_reached) {
  for (int64_t i = 0; i < results.clean.size(); ++i) {
    const double before = results.exact_clean.Get(i);
    const double after = results.exact_poisoned.Get(i);
    const double got = results.poisoned.Get(i);
    const bool stays = results.exact_clean.Bits(i) == results.exact_poisoned.Bits(i);
    const bool right = stays ? results.clean.Bits(i) == results.poisoned.Bits(i)
                             : std::isfinite(got) == std::isfinite(after);
    num_reached += std::isfinite(before) && !std::isfinite(after);
    if (right) continue;
    return testing::AssertionFailure() << name << results.clean.IndexString(i) << ": got " << got
                                       << " (finite inputs: " << results.clean.Get(i)
                                       << "), the reference has " << after << " (" << before << ")";
  }
  return testing::AssertionSuccess();
}

// One bad element of one input.
struct Injection {
  std::string name;
  OwnedTensor Indexer::* tensor;
  int64_t index;
};

// A problem in which no row of p is all zero, so that every row's loss depends on all that it
// reads.
Indexer MakeProblem(const Case& spec) {
  Indexer problem(spec);
  for (const RowPlace& place : UsedRows(spec)) {
    const int64_t first_column = place.row * Placement(spec).num_columns;
    if (place.num_visible > 0) problem.p.Set(first_column, problem.p.Get(first_column) + 0.25);
  }
  return problem;
}

// Injects every poison at every place in turn.
void CheckInjections(const Case& spec, const std::vector<Injection>& injections) {
  const Indexer clean = MakeProblem(spec);
  const LseOutputs exact_lse = ReferenceSoftmaxLse(clean);
  const GradOutputs exact = ReferenceKLLossGrad(clean);
  for (size_t i = 0; i < injections.size(); i += kSanitized ? 4 : 1) {
    const Injection& injection = injections[i];
    for (const double poison : kPoisons) {
      Indexer poisoned = clean;
      (poisoned.*injection.tensor).Set(injection.index, poison);
      const LseOutputs exact_poisoned_lse = ReferenceSoftmaxLse(poisoned);
      const GradOutputs exact_poisoned = ReferenceKLLossGrad(poisoned);
      for (const Isa isa : TestedIsas()) {
        const ScopedIsa forced(isa);
        SCOPED_TRACE(std::string(IsaName(isa)) + ", " + std::to_string(poison) + " in " +
                     injection.name + "\n  " + ToString(spec));
        const LseOutputs clean_lse = RunSoftmaxLse(clean);
        const LseOutputs lse = RunSoftmaxLse(poisoned);
        const GradOutputs clean_grad = RunKLLossGrad(clean);
        const GradOutputs grad = RunKLLossGrad(poisoned);
        int64_t num_reached = 0;
        const auto check = [&](std::string_view name, OwnedTensor GradOutputs::* output) {
          EXPECT_TRUE(ReachesWhatItShould(
              name, {clean_grad.*output, grad.*output, exact.*output, exact_poisoned.*output},
              num_reached));
        };
        check("dq", &GradOutputs::dq);
        check("dk", &GradOutputs::dk);
        check("dw", &GradOutputs::dw);
        check("softmax_out", &GradOutputs::softmax_out);
        check("loss_rows", &GradOutputs::loss_rows);
        EXPECT_TRUE(ReachesWhatItShould(
            "lse", {clean_lse.lse, lse.lse, exact_lse.lse, exact_poisoned_lse.lse}, num_reached));
        EXPECT_TRUE(ReachesWhatItShould(
            "lse loss_rows",
            {clean_lse.loss_rows, lse.loss_rows, exact_lse.loss_rows, exact_poisoned_lse.loss_rows},
            num_reached));
        EXPECT_GT(num_reached, 0) << "the injection does nothing, so it tests nothing";
      }
    }
  }
}

// Blocks of 85 rows; in the only chunk every row sees one key more than the row before.
Case StaircaseCase(DType dtype) {
  Case spec;
  spec.dtype = dtype;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 3;
  spec.head_dim = 5;
  spec.num_rows = {100, 4};
  spec.num_keys = {100, 3};
  spec.row_scale = true;
  spec.wide_grads = true;
  spec.seed = RunningTest();
  return spec;
}

std::vector<Injection> Everywhere(const Case& spec) {
  const int64_t pair = spec.num_heads * spec.head_dim;
  const int64_t num_columns = Placement(spec).num_columns;
  std::vector<Injection> injections;
  for (const int64_t key : {0, 1, 50, 98, 99}) {
    injections.push_back(
        {"key " + std::to_string(key), &Indexer::k, key * spec.head_dim + key % spec.head_dim});
  }
  // Not row 0: the loss of a row with one key does not depend on its score.
  for (const int64_t row : {1, 15, 60, 84, 85, 99}) {
    const std::string of_row = " of row " + std::to_string(row);
    injections.push_back({"q" + of_row, &Indexer::q, row * pair + row % pair});
    injections.push_back({"w" + of_row, &Indexer::w, row * spec.num_heads + row % spec.num_heads});
    injections.push_back({"p" + of_row, &Indexer::p, row * num_columns + row / 2});
    injections.push_back({"lse" + of_row, &Indexer::lse, row});
    injections.push_back({"row_scale" + of_row, &Indexer::row_scale, row});
  }
  return injections;
}

TEST(NonFinite, ReachesWhatTheSpecSaysFp32) {
  const Case spec = StaircaseCase(DType::kFloat32);
  CheckInjections(spec, Everywhere(spec));
}

TEST(NonFinite, ReachesWhatTheSpecSaysBf16) {
  const Case spec = StaircaseCase(DType::kBFloat16);
  CheckInjections(spec, Everywhere(spec));
}

TEST(NonFinite, ReachesWhatTheSpecSaysFp16) {
  const Case spec = StaircaseCase(DType::kFloat16);
  CheckInjections(spec, Everywhere(spec));
}

// Several chunks of keys: only those that hold the bad key, and rows that see it, are affected.
TEST(NonFinite, StaysInItsChunk) {
  Case spec;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 2;
  spec.head_dim = 3;
  spec.num_rows = {300};
  spec.num_keys = {520};
  spec.seed = RunningTest();
  CheckInjections(spec, {{"key 3", &Indexer::k, 3 * 3},
                         {"key 255", &Indexer::k, 255 * 3 + 1},
                         {"key 256, alone in its chunk for one row", &Indexer::k, 256 * 3},
                         {"key 258", &Indexer::k, 258 * 3 + 2},
                         {"q of row 20", &Indexer::q, 20 * 6 + 1}});
}

// Rows of one block that see equal counts, in steps of the compression ratio.
TEST(NonFinite, CompressedKeys) {
  Case spec;
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.mask_mode = MaskMode::kCausal;
  spec.cmp_ratio = 4;
  spec.num_heads = 8;
  spec.head_dim = 6;
  spec.num_rows = {70, 30};
  spec.num_keys = {16, 16};
  spec.residual = {3, 0};
  spec.spare_rows = spec.spare_keys = 2;
  spec.seed = RunningTest();
  CheckInjections(spec, {{"key 1", &Indexer::k, 6},
                         {"key 15", &Indexer::k, 15 * 6 + 5},
                         {"q of row 8", &Indexer::q, 8 * 48 + 20},
                         {"q of row 69", &Indexer::q, 69 * 48 + 20}});
}

// The spec in words: rows that do not see a bad key, and keys that a bad row does not see, hold the
// same bits as ever.
TEST(NonFinite, RowsThatDoNotSeeABadKeyDoNotChange) {
  const Case spec = StaircaseCase(DType::kFloat32);
  const Indexer clean(spec);
  Indexer poisoned = clean;
  poisoned.k.Set(50 * spec.head_dim, kNan);  // seen by rows 50 and later
  const GradOutputs want = RunKLLossGrad(clean);
  const GradOutputs got = RunKLLossGrad(poisoned);
  const int64_t pair = spec.num_heads * spec.head_dim;
  for (int64_t i = 0; i < 50 * pair; ++i) ASSERT_EQ(got.dq.Bits(i), want.dq.Bits(i)) << i;
  for (int64_t i = 50 * pair; i < 100 * pair; i += spec.head_dim) {
    ASSERT_TRUE(std::isnan(got.dq.Get(i))) << i;
  }
}

TEST(NonFinite, KeysThatABadRowDoesNotSeeDoNotChange) {
  const Case spec = StaircaseCase(DType::kFloat32);
  const Indexer clean(spec);
  Indexer poisoned = clean;
  poisoned.q.Set(50 * spec.num_heads * spec.head_dim, kNan);  // sees keys 0 to 50
  const GradOutputs want = RunKLLossGrad(clean);
  const GradOutputs got = RunKLLossGrad(poisoned);
  for (int64_t i = 51 * spec.head_dim; i < want.dk.size(); ++i) {
    ASSERT_EQ(got.dk.Bits(i), want.dk.Bits(i)) << i;
  }
  for (int64_t key = 0; key <= 50; ++key) {
    ASSERT_TRUE(std::isnan(got.dk.Get(key * spec.head_dim))) << key;
  }
}

// A logit of -inf is a key without weight, even where a chunk of keys holds nothing else.
TEST(NonFinite, AKeyWithoutWeightIsNoNan) {
  Case spec;
  spec.num_rows = {1};
  spec.num_keys = {257};
  Indexer problem(spec);
  problem.q.Fill(1.0);
  problem.w.Fill(-1.0);
  for (const int64_t weightless : {256, 0}) {
    problem.k.Fill(0.5);
    problem.k.Set(weightless, kInfinity);
    for (const Isa isa : TestedIsas()) {
      const ScopedIsa forced(isa);
      // 256 logits of -0.5.
      EXPECT_NEAR(RunSoftmaxLse(problem).lse.Get(0), std::log(256.0) - 0.5, 1e-6);
      EXPECT_EQ(RunKLLossGrad(problem).softmax_out.Get(weightless), 0.0);
    }
  }
}

// No p_j > 0, no term in the loss: neither operator may make 0 * NaN of it.
TEST(NonFinite, RowsWithoutTeacherMassHaveNoLoss) {
  Case spec = StaircaseCase(DType::kFloat32);
  spec.mask_mode = MaskMode::kNone;
  Indexer problem(spec);
  problem.p.Fill(0.0);
  problem.k.Set(0, kNan);
  const LseOutputs lse = RunSoftmaxLse(problem);
  const GradOutputs grad = RunKLLossGrad(problem);
  for (int64_t row = 0; row < 100; ++row) {
    ASSERT_TRUE(std::isnan(lse.lse.Get(row)));
    ASSERT_EQ(grad.loss_rows.Get(row), 0.0);
    ASSERT_EQ(lse.loss_rows.Get(row), 0.0);
  }
}

TEST(NonFinite, Teacher) {
  Case spec = StaircaseCase(DType::kFloat32);
  spec.num_heads = 4;
  spec.num_key_heads = 2;
  const int64_t pair = spec.num_heads * spec.head_dim;
  const struct {
    std::string name;
    OwnedTensor Teacher::* tensor;
    int64_t index;
  } injections[] = {{"key 30, second head", &Teacher::k, 30 * 10 + 7},
                    {"key 0", &Teacher::k, 2},
                    {"q of row 64", &Teacher::q, 64 * pair + 3},
                    {"q of row 99", &Teacher::q, 99 * pair + 19},
                    {"lse of row 7", &Teacher::lse, 7 * 4 + 1}};
  for (const Teacher::Lse kind : {Teacher::Lse::kGiven, Teacher::Lse::kAbsent}) {
    const Teacher clean(spec, kind);
    const OwnedTensor exact = ReferenceAttentionL1Norm(clean);
    for (const auto& injection : injections) {
      if (!(clean.*injection.tensor).present()) continue;
      for (const double poison : {kNan, kInfinity}) {
        Teacher poisoned = clean;
        (poisoned.*injection.tensor).Set(injection.index, poison);
        const OwnedTensor exact_poisoned = ReferenceAttentionL1Norm(poisoned);
        for (const Isa isa : TestedIsas()) {
          const ScopedIsa forced(isa);
          int64_t num_reached = 0;
          EXPECT_TRUE(ReachesWhatItShould(
              "p", {RunAttentionL1Norm(clean), RunAttentionL1Norm(poisoned), exact, exact_poisoned},
              num_reached))
              << injection.name << ", " << poison << ", " << IsaName(isa);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kindling::test
