// The comparators must be able to fail, and say what they found.
#include "support/compare.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/error_bounds.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

OwnedTensor Values(DType dtype, const std::vector<double>& values) {
  OwnedTensor tensor(dtype, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.Set(static_cast<int64_t>(i), values[i]);
  return tensor;
}

bool IsNear(double got, double want, double bound) {
  return Near("x", Values(DType::kFloat64, {got}), Values(DType::kFloat64, {want}), {bound},
              Case());
}

TEST(Near, AcceptsWhatIsWithinItsBound) {
  EXPECT_TRUE(IsNear(1.0, 1.0, 0.0));
  EXPECT_TRUE(IsNear(1.0, 1.5, 0.5));
  EXPECT_TRUE(IsNear(kInfinity, kInfinity, 0.0));
  EXPECT_TRUE(IsNear(kNan, kNan, 0.0));
  EXPECT_TRUE(IsNear(0.0, -0.0, 0.0));
}

TEST(Near, RefusesWhatIsNot) {
  EXPECT_FALSE(IsNear(1.0, 1.5, 0.49));
  EXPECT_FALSE(IsNear(1.0, std::nextafter(1.0, 2.0), 0.0));
  EXPECT_FALSE(IsNear(kNan, 1.0, 1e300));
  EXPECT_FALSE(IsNear(1.0, kNan, 1e300));
  EXPECT_FALSE(IsNear(kInfinity, 1.0, 1e300));
  EXPECT_FALSE(IsNear(kInfinity, -kInfinity, kInfinity));
  EXPECT_FALSE(IsNear(1.0, 2.0, kNan));
}

TEST(Near, ReportsTheWorstElement) {
  OwnedTensor got(DType::kFloat32, {2, 2});
  OwnedTensor want(DType::kFloat64, {2, 2});
  for (int64_t i = 0; i < 4; ++i) {
    got.Set(i, static_cast<double>(i));
    want.Set(i, static_cast<double>(i));
  }
  got.Set(1, 1.25);  // 2.5 bounds away
  got.Set(2, 2.5);   // 5 bounds away
  Case spec;
  spec.num_rows = spec.num_keys = {1};
  const testing::AssertionResult result = Near("dq", got, want, Bounds(4, 0.1), spec);
  ASSERT_FALSE(result);
  const std::string message = result.message();
  EXPECT_NE(message.find("dq[1, 0]: got 2.5, expected 2 within 0.1"), std::string::npos) << message;
  EXPECT_NE(message.find("the worst of 2 wrong elements among 4"), std::string::npos) << message;
  EXPECT_NE(message.find(ReproduceCommand(spec)), std::string::npos) << message;
}

TEST(Near, RefusesOtherShapes) {
  const OwnedTensor two(DType::kFloat32, {2});
  EXPECT_FALSE(Near("x", two, OwnedTensor(DType::kFloat64, {1, 2}), Bounds(2), Case()));
  EXPECT_FALSE(Near("x", two, OwnedTensor(DType::kFloat64, {2}), Bounds(3), Case()));
}

TEST(SameBits, IsStricterThanEquality) {
  const auto same = [](double a, double b) -> bool {
    return SameBits("x", Values(DType::kFloat32, {a}), Values(DType::kFloat32, {b}), Case());
  };
  EXPECT_TRUE(same(1.0, 1.0));
  EXPECT_TRUE(same(kNan, kNan));
  EXPECT_FALSE(same(0.0, -0.0));
  EXPECT_FALSE(same(1.0, std::nextafter(1.0f, 2.0f)));
  EXPECT_FALSE(SameBits("x", Values(DType::kFloat32, {0}), Values(DType::kFloat64, {0}), Case()));
  EXPECT_FALSE(
      SameBits("x", Values(DType::kFloat32, {0}), Values(DType::kFloat32, {0, 0}), Case()));
}

TEST(SameBits, ReportsTheFirstElement) {
  const testing::AssertionResult result = SameBits("dk", Values(DType::kFloat32, {1, 2, 3}),
                                                   Values(DType::kFloat32, {1, 4, 4}), Case());
  ASSERT_FALSE(result);
  const std::string message = result.message();
  EXPECT_NE(message.find("dk[1]: got the bits 0x40000000 (2), expected 0x40800000 (4)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("the first of 2 different elements of 3"), std::string::npos) << message;
}

TEST(SameBits, LooksAtEveryOutput) {
  Case spec;
  spec.num_rows = spec.num_keys = {2};
  const GradOutputs want = RunKLLossGrad(Indexer(spec));
  EXPECT_TRUE(SameBits(want, want, spec));
  for (OwnedTensor GradOutputs::* output : {&GradOutputs::dq, &GradOutputs::dk, &GradOutputs::dw,
                                            &GradOutputs::softmax_out, &GradOutputs::loss_rows}) {
    GradOutputs got = want;
    (got.*output).Set(0, 99.0);
    EXPECT_FALSE(SameBits(got, want, spec));
    got.*output = OwnedTensor();  // not asked for
    EXPECT_TRUE(SameBits(got, want, spec));
  }
}

TEST(Written, FindsWhatNobodyWrote) {
  OwnedTensor tensor(DType::kFloat16, {3});
  tensor.Fill(1.0);
  EXPECT_TRUE(Written("x", tensor, Case()));
  tensor.Set(2, kNan);  // not the NaN of a new tensor
  EXPECT_TRUE(Written("x", tensor, Case()));
  EXPECT_FALSE(Written("x", OwnedTensor(DType::kFloat16, {3}), Case()));
}

TEST(Norms, AreThoseOfTheDifference) {
  const OwnedTensor want = Values(DType::kFloat64, {3, 4});
  EXPECT_DOUBLE_EQ(RelativeError(Values(DType::kFloat64, {3, 4.5}), want), 0.1);
  EXPECT_DOUBLE_EQ(MaxError(Values(DType::kFloat64, {2.75, 4.5}), want), 0.5);
  EXPECT_TRUE(std::isnan(MaxError(Values(DType::kFloat64, {kNan, 4}), want)));
}

TEST(HalfUlp, OfEveryFormat) {
  EXPECT_EQ(HalfUlp(DType::kBFloat16, 1.0), 0x1p-8);
  EXPECT_EQ(HalfUlp(DType::kBFloat16, 1.99), 0x1p-8);
  EXPECT_EQ(HalfUlp(DType::kFloat16, -2.0), 0x1p-10);
  EXPECT_EQ(HalfUlp(DType::kFloat16, 1e-9), 0x1p-25);  // subnormal
  EXPECT_EQ(HalfUlp(DType::kFloat32, 1.0), 0x1p-24);
  EXPECT_EQ(HalfUlp(DType::kFloat32, 0.0), 0x1p-150);
}

// The bounds are of use only if wrong results are outside of them: every output, with one element
// off by far less than its size.
TEST(Bounds, CatchSmallErrors) {
  Case spec;
  spec.num_heads = 4;
  spec.head_dim = 32;
  spec.num_rows = {20};
  spec.num_keys = {60};
  const Indexer problem(spec);
  const GradBounds bounds = BoundKLLossGrad(problem);
  const GradOutputs want = ReferenceKLLossGrad(problem);
  const auto median_ratio = [](const Bounds& bound, const OwnedTensor& values) {
    std::vector<double> ratios;
    for (int64_t i = 0; i < values.size(); ++i) {
      if (values.Get(i) != 0.0) ratios.push_back(bound[i] / std::abs(values.Get(i)));
    }
    std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
    return ratios[ratios.size() / 2];
  };
  EXPECT_LT(median_ratio(bounds.softmax_out, want.softmax_out), 1e-4);
  EXPECT_LT(median_ratio(bounds.loss_rows, want.loss_rows), 1e-3);
  EXPECT_LT(median_ratio(bounds.dw, want.dw), 1e-3);
  EXPECT_LT(median_ratio(bounds.dq, want.dq), 1e-3);
  EXPECT_LT(median_ratio(bounds.dk, want.dk), 1e-3);
  EXPECT_LT(median_ratio(BoundSoftmaxLse(problem).lse, ReferenceSoftmaxLse(problem).lse), 1e-4);
  const Teacher teacher(spec, Teacher::Lse::kAbsent);
  EXPECT_LT(median_ratio(BoundAttentionL1Norm(teacher), ReferenceAttentionL1Norm(teacher)), 1e-4);
}

// A sweep records a failure for a case that fails, generated ones included.
TEST(Sweep, RecordsFailures) {
  const auto fails = [](const Case&) { return testing::AssertionFailure() << "on purpose"; };
  testing::TestPartResultArray failures;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    ForEachCase({Case(), Case()}, fails);
    ForGeneratedCases({.num_cases = 5}, fails);
  }
  ASSERT_EQ(failures.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NE(std::string(failures.GetTestPartResult(i).message()).find("on purpose"),
              std::string::npos);
  }
}

TEST(Sweep, GeneratesTheNumberOfCasesAskedFor) {
  int num_cases = 0;
  int64_t most_work = 0;
  ForGeneratedCases({.num_cases = 40, .max_multiply_adds = 1000}, [&](const Case& spec) {
    ++num_cases;
    most_work = std::max(most_work, NumMultiplyAdds(spec));
    return testing::AssertionSuccess();
  });
  EXPECT_GE(num_cases, 3);
  EXPECT_LE(num_cases, 40);
  EXPECT_LE(most_work, 1000);
  EXPECT_GT(most_work, 0);
}

}  // namespace
}  // namespace kindling::test
