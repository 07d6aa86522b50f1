// Functions of one row of the backward pass: y and dI, the loss, dS and dw.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kernel_test.h"

namespace kindling::test {
namespace {

class BackwardRows : public KernelTest {
 protected:
  // A teacher row: non-negative, with zeros.
  std::vector<float> Teacher(int64_t count) {
    std::vector<float> p = Buffer(count);
    for (int64_t j = 0; j < count; ++j) p[j] = std::max(p[j], 0.0f);
    return p;
  }

  struct Gradient {
    std::vector<float> softmax, logits_grad;
  };
  Gradient Run(GradRow row) const {
    const size_t room = (row.count + 15) / 16 * 16;
    Gradient out{std::vector<float>(room, kNanF), std::vector<float>(room, kNanF)};
    row.softmax = out.softmax.data();
    row.logits_grad = out.logits_grad.data();
    kernels_.grad_row(row);
    return out;
  }

  // Turns fp32 scores into dS in place.
  void Backward(std::vector<float>& scores, const float* w, int64_t num_heads,
                const float* logits_grad, int64_t count, int64_t padded_count, float* dw) const {
    BackwardRow row;
    row.scores = row.ds_by_head = row.ds_by_key = scores.data();
    row.w = w;
    row.num_heads = num_heads;
    row.logits_grad = logits_grad;
    row.count = count;
    row.padded_count = padded_count;
    row.dw = dw;
    kernels_.backward_scores(row);
  }
};

TEST_P(BackwardRows, GradRow) {
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    const std::vector<float> logits = Buffer(count);
    const std::vector<float> p = Teacher(count);
    GradRow row;
    row.logits = logits.data();
    row.teacher = p.data();
    row.count = count;
    row.lse = 1.75f;
    row.teacher_sum = 0.6f;
    row.row_scale = -1.5f;
    const Gradient got = Run(row);
    for (int64_t j = 0; j < count; ++j) {
      const double x = static_cast<double>(logits[j]) - row.lse;
      const double y = std::exp(x);
      const double y_error = y * (kElementaryError + kUnitRoundoff * std::abs(x)) * 1.0001;
      ASSERT_NEAR(got.softmax[j], y, y_error);
      const double product = y * row.teacher_sum;
      const double grad = row.row_scale * (product - p[j]);
      const double error =
          std::abs(row.row_scale) * (y_error * row.teacher_sum + kUnitRoundoff * product +
                                     2 * kUnitRoundoff * std::abs(product - p[j]));
      ASSERT_NEAR(got.logits_grad[j], grad, 1.0001 * error);
    }
  }
}

// dI is zero from `count` up to a whole vector, whatever NaN lies there in the inputs, and nothing
// is written further on.
TEST_P(BackwardRows, GradRowEndsInZeros) {
  const int64_t lanes = LanesOf(GetParam());
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    const std::vector<float> logits = Buffer(count);
    const std::vector<float> p = Teacher(count);
    GradRow row;
    row.logits = logits.data();
    row.teacher = p.data();
    row.count = count;
    row.teacher_sum = 1.0f;
    const Gradient got = Run(row);
    const int64_t end = (count + lanes - 1) / lanes * lanes;
    for (int64_t j = count; j < static_cast<int64_t>(got.logits_grad.size()); ++j) {
      if (j < end) {
        ASSERT_EQ(BitsOf(got.logits_grad[j]), 0u) << count;
      } else {
        ASSERT_EQ(BitsOf(got.logits_grad[j]), BitsOf(kNanF)) << count << ": written behind the row";
        ASSERT_EQ(BitsOf(got.softmax[j]), BitsOf(kNanF)) << count << ": written behind the row";
      }
    }
  }
}

TEST_P(BackwardRows, GradRowKeepsNanAndInfinityInTheirColumns) {
  std::vector<float> logits = Buffer(16);
  std::vector<float> p = Teacher(16);
  GradRow row;
  row.logits = logits.data();
  row.teacher = p.data();
  row.count = 16;
  row.teacher_sum = 0.5f;
  const Gradient clean = Run(row);
  logits[2] = kNanF;
  logits[5] = kInfF;
  logits[6] = -kInfF;
  p[9] = kNanF;
  p[11] = kInfF;
  const Gradient got = Run(row);
  for (int64_t j = 0; j < 16; ++j) {
    if (j == 2 || j == 5 || j == 6 || j == 9 || j == 11) continue;
    EXPECT_EQ(BitsOf(got.softmax[j]), BitsOf(clean.softmax[j]));
    EXPECT_EQ(BitsOf(got.logits_grad[j]), BitsOf(clean.logits_grad[j]));
  }
  EXPECT_TRUE(std::isnan(got.softmax[2]) && std::isnan(got.logits_grad[2]));
  EXPECT_EQ(got.softmax[5], kInfF);
  EXPECT_EQ(got.logits_grad[5], kInfF);
  EXPECT_EQ(got.softmax[6], 0.0f);
  EXPECT_EQ(got.logits_grad[6], -p[6]);
  EXPECT_TRUE(std::isfinite(got.softmax[9]) && std::isnan(got.logits_grad[9]));
  EXPECT_EQ(got.logits_grad[11], -kInfF);

  // What belongs to the whole row reaches all of it.
  row.teacher_sum = kNanF;
  for (int64_t j = 0; j < 16; ++j) EXPECT_TRUE(std::isnan(Run(row).logits_grad[j]));
  row.teacher_sum = 0.5f;
  row.lse = -kInfF;
  EXPECT_EQ(Run(row).softmax[0], kInfF);
  row.lse = kInfF;
  EXPECT_EQ(Run(row).softmax[0], 0.0f);
  row.lse = kNanF;
  for (int64_t j = 0; j < 16; ++j) EXPECT_TRUE(std::isnan(Run(row).softmax[j]));
}

// y P - p, not y - p, and scaled exactly by powers of two.
TEST_P(BackwardRows, GradRowUsesTheTeachersSumAndTheScale) {
  const std::vector<float> logits = Buffer(8);
  const std::vector<float> zeros(16, 0.0f);
  GradRow row;
  row.logits = logits.data();
  row.teacher = zeros.data();
  row.count = 8;
  row.teacher_sum = 2.0f;
  const Gradient twice = Run(row);
  row.row_scale = -8.0f;
  const Gradient scaled = Run(row);
  for (int64_t j = 0; j < 8; ++j) {
    EXPECT_EQ(twice.logits_grad[j], 2.0f * twice.softmax[j]);
    EXPECT_EQ(scaled.logits_grad[j], -8.0f * twice.logits_grad[j]);
    EXPECT_EQ(scaled.softmax[j], twice.softmax[j]);
  }
}

TEST_P(BackwardRows, GradRowDoesNotDependOnTheCount) {
  const std::vector<float> logits = Buffer(48);
  const std::vector<float> p = Teacher(48);
  GradRow row;
  row.logits = logits.data();
  row.teacher = p.data();
  row.lse = 3.0f;
  row.teacher_sum = 0.9f;
  row.count = 48;
  const Gradient whole = Run(row);
  for (row.count = 1; row.count < 48; ++row.count) {
    const Gradient part = Run(row);
    for (int64_t j = 0; j < row.count; ++j) {
      ASSERT_EQ(BitsOf(part.softmax[j]), BitsOf(whole.softmax[j]));
      ASSERT_EQ(BitsOf(part.logits_grad[j]), BitsOf(whole.logits_grad[j]));
    }
  }
}

TEST_P(BackwardRows, LossTerms) {
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    const std::vector<float> logits = Buffer(count);
    const std::vector<float> p = Teacher(count);
    const float shift = -2.5f;
    const LossTerms got = kernels_.loss_terms(logits.data(), p.data(), count, shift);
    double entropy = 0.0;
    double error = 0.0;
    double sum = 0.0;
    for (int64_t j = 0; j < count; ++j) {
      if (p[j] == 0.0f) continue;
      const double log_p = std::log(static_cast<double>(p[j]));
      const double logit = static_cast<double>(logits[j]) + shift;
      entropy += p[j] * (log_p - logit);
      error += p[j] * (kElementaryError * std::abs(log_p) + kUnitRoundoff * std::abs(logit) +
                       (2 + kMaxTail) * kUnitRoundoff * (std::abs(log_p) + std::abs(logit)));
      sum += p[j];
    }
    EXPECT_NEAR(got.relative_entropy, entropy, error);
    EXPECT_NEAR(got.teacher_sum, sum, kMaxTail * kUnitRoundoff * sum);
  }
}

// A key without teacher mass adds nothing, whatever its logit is.
TEST_P(BackwardRows, LossIgnoresLogitsWithoutMass) {
  const std::vector<float> p = {0.5f, 0.0f, 0.25f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f,
                                0.0f, 0.0f, 0.0f,  0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  std::vector<float> logits = Buffer(16);
  const float want = kernels_.loss_terms(logits.data(), p.data(), 16, 0.0f).relative_entropy;
  logits[1] = kNanF;
  logits[3] = kInfF;
  logits[4] = -kInfF;
  EXPECT_EQ(kernels_.loss_terms(logits.data(), p.data(), 16, 0.0f).relative_entropy, want);
  logits[2] = kNanF;
  EXPECT_TRUE(std::isnan(kernels_.loss_terms(logits.data(), p.data(), 16, 0.0f).relative_entropy));
}

TEST_P(BackwardRows, LossKeepsANanOfTheTeacher) {
  for (int64_t count = 1; count <= kMaxTail; ++count) {
    for (int64_t bad = 0; bad < count; ++bad) {
      const std::vector<float> logits = Buffer(count);
      std::vector<float> p = Teacher(count);
      p[bad] = kNanF;
      const LossTerms got = kernels_.loss_terms(logits.data(), p.data(), count, 0.0f);
      EXPECT_TRUE(std::isnan(got.relative_entropy));
      EXPECT_TRUE(std::isnan(got.teacher_sum));
    }
  }
}

// Buffers are NaN behind `count`, dI is as grad_row leaves it.
TEST_P(BackwardRows, BackwardScores) {
  constexpr int64_t kHeads = 3;
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    for (const int64_t padded : {count, count + 1, count + 40, kKeysPerChunk}) {
      std::vector<float> scores(kHeads * kScoreStride, kNanF);
      for (int64_t head = 0; head < kHeads; ++head) {
        for (int64_t j = 0; j < count; ++j) {
          scores[head * kScoreStride + j] = static_cast<float>(random_.Normal());
        }
      }
      const std::vector<float> logits = Buffer(count);
      const std::vector<float> p = Teacher(count);
      GradRow row;
      row.logits = logits.data();
      row.teacher = p.data();
      row.count = count;
      row.teacher_sum = 0.5f;
      const std::vector<float> grad = Run(row).logits_grad;
      const std::vector<float> w = Buffer(kHeads);
      float dw[kHeads] = {1.0f, -2.0f, 0.0f};
      const std::vector<float> before = scores;
      Backward(scores, w.data(), kHeads, grad.data(), count, padded, dw);
      for (int64_t head = 0; head < kHeads; ++head) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (int64_t j = 0; j < count; ++j) {
          const int64_t at = head * kScoreStride + j;
          const double relu = std::max(before[at], 0.0f);
          sum += grad[j] * relu;
          magnitude += std::abs(grad[j] * relu);
          ASSERT_EQ(scores[at], before[at] > 0.0f ? grad[j] * w[head] : 0.0f) << count;
        }
        for (int64_t j = count; j < padded; ++j) {
          ASSERT_EQ(BitsOf(scores[head * kScoreStride + j]), 0u) << count << " of " << padded;
        }
        const float start = head == 0 ? 1.0f : head == 1 ? -2.0f : 0.0f;
        const double error = (kMaxTail + 1) * kUnitRoundoff * magnitude;
        ASSERT_NEAR(dw[head], start + sum, error + kUnitRoundoff * (std::abs(start + sum) + error))
            << count;
      }
    }
  }
}

// The gate is S > 0: neither 0, -0 nor NaN opens it; a NaN still reaches dw.
TEST_P(BackwardRows, TheGateIsStrict) {
  std::vector<float> scores(kScoreStride, 1.0f);
  scores[0] = 0.0f;
  scores[1] = -0.0f;
  scores[2] = kNanF;
  scores[3] = std::numeric_limits<float>::denorm_min();
  scores[4] = -1.0f;
  const std::vector<float> grad(16, 2.0f);
  const float w[16] = {3.0f};
  float dw[1] = {0.0f};
  Backward(scores, w, 1, grad.data(), 5, 5, dw);
  EXPECT_EQ(BitsOf(scores[0]), 0u);
  EXPECT_EQ(BitsOf(scores[1]), 0u);
  EXPECT_EQ(BitsOf(scores[2]), 0u);
  EXPECT_EQ(scores[3], 6.0f);
  EXPECT_EQ(BitsOf(scores[4]), 0u);
  EXPECT_TRUE(std::isnan(dw[0]));
}

TEST_P(BackwardRows, ANanInTheLogitGradientReachesOpenGates) {
  std::vector<float> scores(kScoreStride, 1.0f);
  scores[1] = -1.0f;
  std::vector<float> grad(16, 2.0f);
  grad[0] = grad[1] = kNanF;
  const float w[16] = {3.0f};
  float dw[1] = {0.0f};
  Backward(scores, w, 1, grad.data(), 3, 3, dw);
  EXPECT_TRUE(std::isnan(scores[0]));
  EXPECT_EQ(BitsOf(scores[1]), 0u);
  EXPECT_EQ(scores[2], 6.0f);
  EXPECT_TRUE(std::isnan(dw[0]));
}

KINDLING_FOR_EVERY_ISA(BackwardRows);

}  // namespace
}  // namespace kindling::test
