// Functions of one row of logits: weighing scores, maximum and sum, merging, exponentials.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kernel_test.h"

namespace kindling::test {
namespace {

class ForwardRows : public KernelTest {
 protected:
  // Scores of `num_heads` heads, the columns from `count` on NaN.
  std::vector<float> Scores(int64_t num_heads, int64_t count) {
    std::vector<float> scores(num_heads * kScoreStride, kNanF);
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t j = 0; j < count; ++j) {
        scores[head * kScoreStride + j] = static_cast<float>(random_.Normal());
      }
    }
    return scores;
  }
};

TEST_P(ForwardRows, WeighScores) {
  for (const int64_t num_heads : {1, 2, 3, 8, 65}) {
    const std::vector<float> w = Buffer(num_heads);
    for (int64_t count = 0; count <= 2 * kMaxTail; ++count) {
      const std::vector<float> scores = Scores(num_heads, count);
      std::vector<float> logits(kScoreStride);
      kernels_.weigh_scores(scores.data(), w.data(), num_heads, count, logits.data());
      for (int64_t j = 0; j < count; ++j) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (int64_t head = 0; head < num_heads; ++head) {
          const double relu = std::max(scores[head * kScoreStride + j], 0.0f);
          sum += w[head] * relu;
          magnitude += std::abs(w[head] * relu);
        }
        const double gamma = static_cast<double>(num_heads) * kUnitRoundoff * 1.0001;
        ASSERT_NEAR(logits[j], sum, gamma * magnitude) << count << " keys, key " << j;
      }
    }
  }
}

TEST_P(ForwardRows, AWeighedScoreDoesNotDependOnTheCount) {
  const std::vector<float> w = Buffer(7);
  const std::vector<float> scores = Scores(7, kKeysPerChunk);
  std::vector<float> whole(kScoreStride);
  kernels_.weigh_scores(scores.data(), w.data(), 7, kKeysPerChunk, whole.data());
  for (int64_t count = 1; count < kKeysPerChunk; ++count) {
    std::vector<float> part(kScoreStride);
    kernels_.weigh_scores(scores.data(), w.data(), 7, count, part.data());
    for (int64_t j = 0; j < count; ++j) ASSERT_EQ(BitsOf(part[j]), BitsOf(whole[j])) << count;
  }
}

TEST_P(ForwardRows, WeighScoresKeepsNan) {
  std::vector<float> scores = Scores(2, 16);
  scores[kScoreStride + 5] = kNanF;
  const float w[16] = {1.0f, 0.0f};  // 0 * NaN is NaN
  std::vector<float> logits(kScoreStride);
  kernels_.weigh_scores(scores.data(), w, 2, 16, logits.data());
  for (int64_t j = 0; j < 16; ++j) EXPECT_EQ(std::isnan(logits[j]), j == 5);
}

TEST_P(ForwardRows, MaxSum) {
  for (int64_t count = 1; count <= kMaxTail; ++count) {
    for (const float scale : {1.0f, 0.125f, -2.0f, 50.0f}) {
      const std::vector<float> x = Buffer(count);
      float max = -kInfF;
      for (int64_t j = 0; j < count; ++j) max = std::max(max, scale * x[j]);
      double sum = 0.0;
      double error = 0.0;
      for (int64_t j = 0; j < count; ++j) {
        const double difference = static_cast<double>(scale * x[j]) - max;
        const double term = std::exp(difference);
        sum += term;
        error += term * (kElementaryError + kUnitRoundoff * std::abs(difference));
      }
      error += static_cast<double>(count) * kUnitRoundoff * sum;
      const MaxSum got = kernels_.max_sum(x.data(), count, scale);
      EXPECT_EQ(got.max, max) << count;
      EXPECT_NEAR(got.sum, sum, error + 0x1p-149) << count;
    }
  }
}

TEST_P(ForwardRows, MaxSumOfNothing) {
  const MaxSum got = kernels_.max_sum(Buffer(0).data(), 0, 1.0f);
  EXPECT_EQ(got.max, -kInfF);
  EXPECT_EQ(got.sum, 0.0f);
}

TEST_P(ForwardRows, MaxSumKeepsNanAndInfinity) {
  for (int64_t count = 1; count <= kMaxTail; ++count) {
    for (int64_t bad = 0; bad < count; ++bad) {
      std::vector<float> x = Buffer(count);
      x[bad] = kNanF;
      EXPECT_TRUE(std::isnan(kernels_.max_sum(x.data(), count, 1.0f).sum)) << bad;
      x[bad] = kInfF;
      const MaxSum got = kernels_.max_sum(x.data(), count, 1.0f);
      EXPECT_EQ(got.max, kInfF);
      EXPECT_TRUE(std::isnan(got.sum));  // inf - inf
      x[bad] = -kInfF;
      if (count > 1) {
        EXPECT_TRUE(std::isfinite(kernels_.max_sum(x.data(), count, 1.0f).sum)) << bad;
      }
    }
  }
}

// Weightless keys are no NaN: exp(-inf) = 0 whatever the maximum of the others is.
TEST_P(ForwardRows, MaxSumOfMinusInfinitiesAddsNothing) {
  for (int64_t count = 1; count <= kMaxTail; ++count) {
    std::vector<float> x = Buffer(count);
    std::fill_n(x.begin(), count, -kInfF);
    const MaxSum got = kernels_.max_sum(x.data(), count, 1.0f);
    EXPECT_EQ(got.max, -kInfF);
    EXPECT_EQ(got.sum, 0.0f);
    const MaxSum some{-1.5f, 3.0f};
    for (const MaxSum& merged : {kernels_.merge(some, got), kernels_.merge(got, some)}) {
      EXPECT_EQ(merged.max, some.max);
      EXPECT_EQ(merged.sum, some.sum);
    }
    x[count / 2] = kNanF;
    EXPECT_TRUE(std::isnan(kernels_.max_sum(x.data(), count, 1.0f).sum));
  }
}

TEST_P(ForwardRows, MergeIsTheSetAsOne) {
  for (int round = 0; round < 200; ++round) {
    const int64_t count_a = 1 + random_.Below(kMaxTail);
    const int64_t count_b = 1 + random_.Below(kMaxTail);
    std::vector<float> x = Buffer(count_a + count_b);
    for (float& value : x) value *= 10.0f;
    std::vector<float> b(x.begin() + count_a, x.begin() + count_a + count_b);
    b.resize(count_b + 15, kNanF);
    const MaxSum whole = kernels_.max_sum(x.data(), count_a + count_b, 1.0f);
    const MaxSum merged = kernels_.merge(kernels_.max_sum(x.data(), count_a, 1.0f),
                                         kernels_.max_sum(b.data(), count_b, 1.0f));
    EXPECT_EQ(merged.max, whole.max);
    // Differences of up to 70 or so, rounded, under an exponential; both sums have this error.
    const double relative = 2 * (2 * kElementaryError + (140 + 2 * kMaxTail) * kUnitRoundoff);
    EXPECT_NEAR(merged.sum, whole.sum, relative * whole.sum);
  }
}

TEST_P(ForwardRows, MergeWithNothing) {
  const MaxSum nothing{-kInfF, 0.0f};
  const MaxSum some{-3.5f, 2.25f};
  for (const MaxSum& got : {kernels_.merge(nothing, some), kernels_.merge(some, nothing)}) {
    EXPECT_EQ(got.max, some.max);
    EXPECT_EQ(got.sum, some.sum);
  }
  EXPECT_EQ(kernels_.merge(nothing, nothing).max, -kInfF);
  EXPECT_EQ(kernels_.merge(nothing, nothing).sum, 0.0f);
}

TEST_P(ForwardRows, MergeKeepsNan) {
  const MaxSum some{1.0f, 2.0f};
  EXPECT_TRUE(std::isnan(kernels_.merge({0.0f, kNanF}, some).sum));
  EXPECT_TRUE(std::isnan(kernels_.merge(some, {0.0f, kNanF}).sum));
  EXPECT_TRUE(std::isnan(kernels_.merge(some, {kInfF, kNanF}).sum));
}

TEST_P(ForwardRows, Sum) {
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    std::vector<float> x = Buffer(count);
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t j = 0; j < count; ++j) {
      sum += x[j];
      magnitude += std::abs(x[j]);
    }
    EXPECT_NEAR(kernels_.sum(x.data(), count), sum, magnitude * kUnitRoundoff * kMaxTail);
    for (int64_t bad = 0; bad < count; ++bad) {
      std::vector<float> poisoned = x;
      poisoned[bad] = kInfF;
      EXPECT_EQ(kernels_.sum(poisoned.data(), count), kInfF);
      poisoned[bad] = kNanF;
      EXPECT_TRUE(std::isnan(kernels_.sum(poisoned.data(), count)));
    }
  }
}

TEST_P(ForwardRows, AddExp) {
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    const std::vector<float> x = Buffer(count);
    const std::vector<float> before = Buffer(count);
    for (const float scale : {1.0f, 0.3f, -4.0f}) {
      for (const float lse : {0.0f, 2.5f, -7.0f}) {
        std::vector<float> out = before;
        kernels_.add_exp(x.data(), count, scale, lse, out.data());
        for (int64_t j = 0; j < count; ++j) {
          const double product = static_cast<double>(scale) * x[j];
          const double value = std::exp(product - lse);
          const double error =
              value *
              (kElementaryError + kUnitRoundoff * (std::abs(product) + std::abs(product - lse))) *
              1.0001;
          const double sum = before[j] + value;
          ASSERT_NEAR(out[j], sum, error + kUnitRoundoff * (std::abs(sum) + error));
        }
      }
    }
  }
}

TEST_P(ForwardRows, AddExpDoesNotDependOnTheCount) {
  const std::vector<float> x = Buffer(64);
  std::vector<float> whole(64, 0.0f);
  kernels_.add_exp(x.data(), 64, 0.7f, 1.1f, whole.data());
  for (int64_t count = 1; count < 64; ++count) {
    std::vector<float> part(64, 0.0f);
    kernels_.add_exp(x.data(), count, 0.7f, 1.1f, part.data());
    for (int64_t j = 0; j < count; ++j) ASSERT_EQ(BitsOf(part[j]), BitsOf(whole[j]));
  }
}

TEST_P(ForwardRows, AddExpKeepsNanAndInfinityInTheirColumns) {
  for (int64_t count = 6; count <= kMaxTail; ++count) {
    std::vector<float> x = Buffer(count);
    const int64_t last = count - 1;
    x[0] = kNanF;
    x[1] = kInfF;
    x[2] = -kInfF;
    x[3] = 100.0f;
    x[last] = -200.0f;
    std::vector<float> out(x.size(), 0.25f);
    kernels_.add_exp(x.data(), count, 1.0f, 0.0f, out.data());
    EXPECT_TRUE(std::isnan(out[0]));
    EXPECT_EQ(out[1], kInfF);
    EXPECT_EQ(out[2], 0.25f);
    EXPECT_EQ(out[3], kInfF);
    EXPECT_EQ(out[last], 0.25f);
    for (int64_t j = 4; j < last; ++j) EXPECT_TRUE(std::isfinite(out[j]));
    // An lse of a row without mass, and one of a row whose largest logit was infinite.
    std::fill_n(x.begin(), count, 1.0f);
    kernels_.add_exp(x.data(), count, 1.0f, kInfF, out.data());
    EXPECT_EQ(out[last], 0.25f);
    kernels_.add_exp(x.data(), count, 1.0f, -kInfF, out.data());
    EXPECT_EQ(out[last], kInfF);
    kernels_.add_exp(x.data(), count, 1.0f, kNanF, out.data());
    EXPECT_TRUE(std::isnan(out[last]));
  }
}

TEST_P(ForwardRows, DivideIsCorrectlyRounded) {
  for (int64_t count = 0; count <= kMaxTail; ++count) {
    const std::vector<float> x = Buffer(count);
    std::vector<float> out(x.size());
    kernels_.divide(x.data(), count, 3.0f, out.data());
    for (int64_t j = 0; j < count; ++j) EXPECT_EQ(out[j], x[j] / 3.0f);
    // In place, as the teacher does it.
    std::vector<float> same = x;
    kernels_.divide(same.data(), count, 3.0f, same.data());
    for (int64_t j = 0; j < count; ++j) EXPECT_EQ(same[j], out[j]);
  }
}

KINDLING_FOR_EVERY_ISA(ForwardRows);

}  // namespace
}  // namespace kindling::test
