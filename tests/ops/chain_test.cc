// The spec's literals, and what must hold between the results of the operators.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/error_bounds.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/random.h"

namespace kindling::test {
namespace {

// Runs `check` on every instruction set.
template <class Check>
void ForEachIsa(Check check) {
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    SCOPED_TRACE(IsaName(isa));
    check();
  }
}

// Source: the micro case of the spec. q = e0, k0 = e0, k1 = 2 e0, one head, w = 1.
class MicroCase : public testing::TestWithParam<int64_t> {
 protected:
  Indexer Problem(double p0, double p1) const {
    Case spec;
    spec.head_dim = GetParam();
    spec.num_rows = {1};
    spec.num_keys = {2};
    Indexer problem(spec);
    problem.q.Fill(0.0);
    problem.k.Fill(0.0);
    problem.q.Set(0, 1.0);
    problem.k.Set(0, 1.0);
    problem.k.Set(spec.head_dim, 2.0);
    problem.w.Fill(1.0);
    problem.lse.Fill(2.3132617);
    problem.p.Set(0, p0);
    problem.p.Set(1, p1);
    return problem;
  }
};

constexpr double kMicroError = 2e-7;  // a few ulp of 1

TEST_P(MicroCase, TeacherOfMassOne) {
  ForEachIsa([&] {
    const GradOutputs got = RunKLLossGrad(Problem(0.5, 0.5));
    const int64_t width = GetParam();
    EXPECT_NEAR(got.softmax_out.Get(0), 0.2689414, kMicroError);
    EXPECT_NEAR(got.softmax_out.Get(1), 0.7310586, kMicroError);
    EXPECT_NEAR(got.dw.Get(0), 0.2310586, kMicroError);
    EXPECT_NEAR(got.dq.Get(0), 0.2310586, kMicroError);
    EXPECT_NEAR(got.dk.Get(0), -0.2310586, kMicroError);
    EXPECT_NEAR(got.dk.Get(width), 0.2310586, kMicroError);
    for (int64_t d = 1; d < width; ++d) {
      EXPECT_EQ(got.dq.Get(d), 0.0);
      EXPECT_EQ(got.dk.Get(d), 0.0);
      EXPECT_EQ(got.dk.Get(width + d), 0.0);
    }
    // 0.5 (ln 0.5 - ln y0) + 0.5 (ln 0.5 - ln y1)
    EXPECT_NEAR(got.loss_rows.Get(0), 0.1201145, kMicroError);
    EXPECT_NEAR(RunSoftmaxLse(Problem(0.5, 0.5)).lse.Get(0), 2.3132617, kMicroError);
  });
}

TEST_P(MicroCase, TeacherOfMassOneHalf) {
  ForEachIsa([&] {
    const GradOutputs got = RunKLLossGrad(Problem(0.25, 0.25));
    EXPECT_NEAR(got.softmax_out.Get(1), 0.7310586, kMicroError);
    EXPECT_NEAR(got.dk.Get(0), -0.1155293, kMicroError);
    EXPECT_NEAR(got.dk.Get(GetParam()), 0.1155293, kMicroError);
    EXPECT_NEAR(got.dw.Get(0), 2 * 0.1155293 - 0.1155293, kMicroError);
    // The loss of an un-normalised p may be negative: 0.25 (2 ln 0.25 - ln y0 - ln y1).
    EXPECT_NEAR(got.loss_rows.Get(0), -0.2865163, kMicroError);
  });
}

TEST_P(MicroCase, NoTeacher) {
  ForEachIsa([&] {
    const GradOutputs got = RunKLLossGrad(Problem(0.0, 0.0));
    EXPECT_NEAR(got.softmax_out.Get(0), 0.2689414, kMicroError);
    EXPECT_EQ(got.dw.Get(0), 0.0);
    EXPECT_EQ(got.loss_rows.Get(0), 0.0);
    for (int64_t d = 0; d < GetParam(); ++d) {
      EXPECT_EQ(got.dq.Get(d), 0.0);
      EXPECT_EQ(got.dk.Get(d), 0.0);
      EXPECT_EQ(got.dk.Get(GetParam() + d), 0.0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(AnyWidth, MicroCase, testing::Values(1, 2, 16, 128, 130));

// Source: the spec's table of visible keys. What a row sees is where softmax_out is above 0.
struct VisibleKeysRow {
  int64_t num_rows, num_keys, cmp_ratio, residual;
  std::vector<int64_t> num_visible;
};

TEST(Chain, RowsSeeThePrefixOfTheSpecsTable) {
  const VisibleKeysRow table[] = {
      {16, 4, 1, 0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}},
      {32, 8, 4, 0, {0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4,
                     4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 8}},
      {18, 4, 4, 2, {0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4}},
      {10, 3, 4, 1, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3}},
      {13, 4, 4, 2, {1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4}},
      {8, 3, 4, 3, {2, 2, 2, 2, 3, 3, 3, 3}},
  };
  for (const VisibleKeysRow& entry : table) {
    Case spec;
    spec.mask_mode = MaskMode::kCausal;
    spec.cmp_ratio = entry.cmp_ratio;
    spec.num_rows = {entry.num_rows};
    spec.num_keys = {entry.num_keys};
    spec.residual = {entry.residual};
    const OwnedTensor softmax_out = RunKLLossGrad(Indexer(spec)).softmax_out;
    for (int64_t row = 0; row < entry.num_rows; ++row) {
      for (int64_t key = 0; key < entry.num_keys; ++key) {
        EXPECT_EQ(softmax_out.Get(row * entry.num_keys + key) > 0.0, key < entry.num_visible[row])
            << "row " << row << ", key " << key << " of " << spec;
      }
    }
  }
}

TEST(Chain, LongRowsSeeThePrefixOfTheSpecsTable) {
  Case spec;
  spec.mask_mode = MaskMode::kCausal;
  spec.cmp_ratio = 13;
  spec.num_rows = {511};
  spec.num_keys = {3048};
  spec.residual = {0};
  const OwnedTensor p = RunAttentionL1Norm(Teacher(spec, Teacher::Lse::kAbsent));
  const auto num_visible = [&](int64_t row) {
    int64_t count = 0;
    for (int64_t key = 0; key < 3048; ++key) count += p.Get(row * 3048 + key) > 0.0;
    return count;
  };
  EXPECT_EQ(num_visible(0), 3008);
  EXPECT_EQ(num_visible(2), 3008);
  EXPECT_EQ(num_visible(3), 3009);
  EXPECT_EQ(num_visible(508), 3047);
  EXPECT_EQ(num_visible(509), 3047);
  EXPECT_EQ(num_visible(510), 3048);
}

Case ChainCase() {
  Case spec;
  spec.num_heads = 4;
  spec.head_dim = 16;
  spec.num_rows = {70, 20};
  spec.num_keys = {300, 40};
  spec.seed = RunningTest();
  return spec;
}

// Teacher, student, gradients, each from the results before: p and lse sum to one.
Indexer ChainedProblem(Case spec) {
  Indexer problem(spec);
  spec.num_heads = 2;
  problem.p = RunAttentionL1Norm(Teacher(spec, Teacher::Lse::kAbsent));
  problem.lse = RunSoftmaxLse(problem).lse;
  return problem;
}

// Either of two results that are compared may be as far from the exact one as accuracy_test.cc
// allows.
constexpr double kGradientNorm = 2 * 3e-6;
constexpr double kSoftmaxNorm = 2 * 1e-6;
constexpr double kLseError = 2 * 1e-6;

TEST(Chain, SoftmaxSumsToOne) {
  for (const MaskMode mask : {MaskMode::kNone, MaskMode::kCausal}) {
    Case spec = ChainCase();
    spec.mask_mode = mask;
    ForEachIsa([&] {
      const Indexer problem = ChainedProblem(spec);
      const GradOutputs got = RunKLLossGrad(problem);
      const int64_t num_columns = got.softmax_out.shape().back();
      for (const RowPlace& place : UsedRows(spec)) {
        if (place.num_visible == 0) continue;
        double sum = 0.0;
        for (int64_t key = 0; key < place.num_visible; ++key) {
          sum += got.softmax_out.Get(place.row * num_columns + key);
        }
        // An lse that is off by x takes the sum to 1 + x.
        EXPECT_NEAR(sum, 1.0, kLseError) << "row " << place.row;
        // The KL divergence of two distributions.
        EXPECT_GT(got.loss_rows.Get(place.row), -kLseError) << "row " << place.row;
      }
    });
  }
}

// Where every key has 1 in the first place and a head looks at nothing else, dq of that head adds
// up dI, which is 0 when y and p have the same sum.
TEST(Chain, LogitGradientsSumToZero) {
  const Case spec = ChainCase();
  Indexer problem(spec);
  for (const RowPlace& place : UsedRows(spec)) {
    const int64_t first = place.row * spec.num_heads * spec.head_dim;
    for (int64_t d = 0; d < spec.head_dim; ++d) problem.q.Set(first + d, d == 0 ? 3.0 : 0.0);
    problem.w.Set(place.row * spec.num_heads, 1.0);
  }
  for (int64_t i = 0; i < problem.k.size(); i += spec.head_dim) problem.k.Set(i, 1.0);
  ForEachIsa([&] {
    problem.lse = RunSoftmaxLse(problem).lse;
    const OwnedTensor dq = RunKLLossGrad(problem).dq;
    for (const RowPlace& place : UsedRows(spec)) {
      EXPECT_NEAR(dq.Get(place.row * spec.num_heads * spec.head_dim), 0.0, kLseError);
    }
  });
}

// SoftmaxLse knows lse unrounded, KLLossGrad as fp32: two ways to one loss.
TEST(Chain, BothLossesAgree) {
  ForEachIsa([] {
    const Indexer problem = ChainedProblem(ChainCase());
    const LseBounds forward = BoundSoftmaxLse(problem);
    Bounds bounds = BoundKLLossGrad(problem).loss_rows;
    // An error of lse weighs as much as the row of p, whose sum is 1.
    for (size_t row = 0; row < bounds.size(); ++row) {
      bounds[row] += forward.loss_rows[row] + 1.001 * forward.lse[row];
    }
    EXPECT_TRUE(Near("loss_rows", RunKLLossGrad(problem).loss_rows,
                     RunSoftmaxLse(problem).loss_rows, bounds, problem.spec));
  });
}

TEST(Chain, PermutedKeysPermuteTheirGradients) {
  Case spec = ChainCase();
  spec.num_rows = {70};
  spec.num_keys = {300};
  const auto permuted = [](int64_t key) { return key * 7 % 300; };
  const auto permute = [&](const OwnedTensor& tensor, int64_t outer, int64_t inner) {
    OwnedTensor out(tensor.dtype(), tensor.shape());
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t key = 0; key < 300; ++key) {
        for (int64_t i = 0; i < inner; ++i) {
          out.Set((o * 300 + permuted(key)) * inner + i, tensor.Get((o * 300 + key) * inner + i));
        }
      }
    }
    return out;
  };
  ForEachIsa([&] {
    const Indexer problem = ChainedProblem(spec);
    Indexer shuffled = problem;
    shuffled.k = permute(problem.k, 1, spec.head_dim);
    shuffled.p = permute(problem.p, 70, 1);
    const GradOutputs want = RunKLLossGrad(problem);
    const GradOutputs got = RunKLLossGrad(shuffled);
    EXPECT_LT(RelativeError(got.dk, permute(want.dk, 1, spec.head_dim)), kGradientNorm);
    EXPECT_LT(RelativeError(got.softmax_out, permute(want.softmax_out, 70, 1)), kSoftmaxNorm);
    EXPECT_LT(RelativeError(got.dq, want.dq), kGradientNorm);
    EXPECT_LT(RelativeError(got.dw, want.dw), kGradientNorm);
    EXPECT_LT(MaxError(RunSoftmaxLse(shuffled).lse, RunSoftmaxLse(problem).lse), kLseError);
  });
}

TEST(Chain, ScalingTheTeacherScalesTheGradients) {
  ForEachIsa([] {
    const Indexer problem = ChainedProblem(ChainCase());
    Indexer scaled = problem;
    for (int64_t i = 0; i < scaled.p.size(); ++i) scaled.p.Set(i, 3.0 * problem.p.Get(i));
    const GradOutputs want = RunKLLossGrad(problem);
    const GradOutputs got = RunKLLossGrad(scaled);
    const auto times_three = [](const OwnedTensor& tensor) {
      OwnedTensor out(tensor.dtype(), tensor.shape());
      for (int64_t i = 0; i < tensor.size(); ++i) out.Set(i, 3.0 * tensor.Get(i));
      return out;
    };
    EXPECT_LT(RelativeError(got.dq, times_three(want.dq)), kGradientNorm);
    EXPECT_LT(RelativeError(got.dk, times_three(want.dk)), kGradientNorm);
    EXPECT_LT(RelativeError(got.dw, times_three(want.dw)), kGradientNorm);
    EXPECT_TRUE(SameBits("softmax_out", got.softmax_out, want.softmax_out, problem.spec));
  });
}

// exp(-I) instead of exp(I): with lse = 0 and no head gated, the two softmax_outs are reciprocal.
TEST(Chain, NegatingWeightsNegatesLogits) {
  ForEachIsa([] {
    Indexer problem(ChainCase());
    problem.lse.Fill(0.0);
    const OwnedTensor plus = RunKLLossGrad(problem).softmax_out;
    for (int64_t i = 0; i < problem.w.size(); ++i) problem.w.Set(i, -problem.w.Get(i));
    const OwnedTensor minus = RunKLLossGrad(problem).softmax_out;
    const int64_t num_columns = plus.shape().back();
    for (const RowPlace& place : UsedRows(problem.spec)) {
      for (int64_t i = place.row * num_columns; i < place.row * num_columns + place.num_visible;
           ++i) {
        EXPECT_NEAR(plus.Get(i) * minus.Get(i), 1.0, kSoftmaxNorm);
      }
    }
  });
}

// row_scale multiplies the gradients of its row and nothing else; powers of two do so exactly.
TEST(Chain, RowScaleScalesGradientsOnly) {
  ForEachIsa([] {
    Case spec = ChainCase();
    spec.row_scale = true;
    Indexer problem(spec);
    problem.row_scale.Fill(1.0);
    const GradOutputs ones = RunKLLossGrad(problem);
    Indexer absent = problem;
    absent.row_scale = OwnedTensor();
    EXPECT_TRUE(SameBits(RunKLLossGrad(absent), ones, spec));

    problem.row_scale.Fill(-4.0);
    const GradOutputs scaled = RunKLLossGrad(problem);
    for (int64_t i = 0; i < ones.dq.size(); ++i) {
      ASSERT_EQ(scaled.dq.Get(i), -4.0 * ones.dq.Get(i));
    }
    for (int64_t i = 0; i < ones.dk.size(); ++i) {
      ASSERT_EQ(scaled.dk.Get(i), -4.0 * ones.dk.Get(i));
    }
    for (int64_t i = 0; i < ones.dw.size(); ++i) {
      ASSERT_EQ(scaled.dw.Get(i), -4.0 * ones.dw.Get(i));
    }
    EXPECT_TRUE(SameBits("softmax_out", scaled.softmax_out, ones.softmax_out, spec));
    EXPECT_TRUE(SameBits("loss_rows", scaled.loss_rows, ones.loss_rows, spec));
  });
}

}  // namespace
}  // namespace kindling::test
