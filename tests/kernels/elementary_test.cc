// exp and ln as the kernels compute them, seen through add_exp and loss_terms.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/kernel_test.h"
#include "support/build_kind.h"

namespace kindling::test {
namespace {

class Elementary : public KernelTest {
 protected:
  // exp(x), element by element.
  std::vector<float> Exp(std::vector<float> x) const {
    const auto count = static_cast<int64_t>(x.size());
    x.resize((x.size() + 15) / 16 * 16, kNanF);
    std::vector<float> out(x.size(), 0.0f);
    kernels_.add_exp(x.data(), count, 1.0f, 0.0f, out.data());
    out.resize(count);
    return out;
  }
  float Exp(float x) const { return Exp(std::vector<float>{x})[0]; }

  // p ln p, rounded once more by the product.
  float XLogX(float p) const {
    float teacher[16] = {p};
    float logits[16] = {};
    return kernels_.loss_terms(logits, teacher, 1, 0.0f).relative_entropy;
  }

  // The worst error of exp over every `stride`th number between two of the same sign.
  double WorstExpError(float from, float to, uint32_t stride) const {
    double worst = 0.0;
    std::vector<float> x;
    const auto check = [&] {
      const std::vector<float> got = Exp(x);
      for (size_t i = 0; i < x.size(); ++i) {
        worst = std::max(worst, UlpError(got[i], std::exp(static_cast<double>(x[i]))));
      }
      x.clear();
    };
    for (uint32_t bits = BitsOf(from); bits <= BitsOf(to); bits += stride) {
      x.push_back(std::bit_cast<float>(bits));
      if (x.size() == 4096) check();
    }
    check();
    return worst;
  }

  double WorstLogError(float from, float to, uint32_t stride) const {
    double worst = 0.0;
    for (uint32_t bits = BitsOf(from); bits <= BitsOf(to); bits += stride) {
      const float p = std::bit_cast<float>(bits);
      const double log_p = std::log(static_cast<double>(p));
      // Half an ulp of the result comes from the product.
      const double error = std::abs(XLogX(p) - p * log_p) - kUnitRoundoff * std::abs(p * log_p);
      worst = std::max(worst, UlpError(static_cast<float>(log_p + error / p), log_p));
    }
    return worst;
  }
};

constexpr uint32_t kThin = kSanitized ? 40 : 1;

TEST_P(Elementary, ExpIsWithinTwoUlp) {
  EXPECT_LE(WorstExpError(0x1p-30f, 88.72f, 997 * kThin), 2.0);
  EXPECT_LE(WorstExpError(-0x1p-30f, -87.0f, 997 * kThin), 2.0);
}

TEST_P(Elementary, ExpIsWithinTwoUlpWhereItIsSubnormal) {
  EXPECT_LE(WorstExpError(-87.0f, -104.0f, 101 * kThin), 2.0);
}

TEST_P(Elementary, ExpAtItsLimits) {
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(-104.0f), 0.0f);
  EXPECT_EQ(Exp(-1e30f), 0.0f);
  EXPECT_EQ(Exp(-kInfF), 0.0f);
  EXPECT_EQ(Exp(88.8f), kInfF);
  EXPECT_EQ(Exp(89.0f), kInfF);
  EXPECT_EQ(Exp(1e30f), kInfF);
  EXPECT_EQ(Exp(kInfF), kInfF);
  EXPECT_TRUE(std::isnan(Exp(kNanF)));
  EXPECT_TRUE(std::isnan(Exp(-kNanF)));
  // ln of the largest number is 88.7228394.
  EXPECT_LT(Exp(88.7228f), kInfF);
  EXPECT_GT(Exp(-103.27f), 0.0f);
  EXPECT_EQ(Exp(std::numeric_limits<float>::denorm_min()), 1.0f);
}

TEST_P(Elementary, ExpOfALaneDoesNotDependOnItsNeighbours) {
  const float values[] = {kNanF, kInfF, -kInfF, 0.5f, -50.0f, 88.0f};
  for (int64_t lane = 0; lane < 16; ++lane) {
    for (const float neighbour : values) {
      std::vector<float> x(16, neighbour);
      x[lane] = -1.25f;
      EXPECT_EQ(BitsOf(Exp(x)[lane]), BitsOf(Exp(-1.25f)));
    }
  }
}

TEST_P(Elementary, LogIsWithinTwoUlp) {
  EXPECT_LE(WorstLogError(0x1p-126f, 0x1p100f, 1999 * kThin), 2.0);
}

TEST_P(Elementary, LogIsWithinTwoUlpAroundOne) {
  EXPECT_LE(WorstLogError(0.9f, 1.1f, 7 * kThin), 2.0);
}

TEST_P(Elementary, LogAtItsLimits) {
  EXPECT_EQ(XLogX(1.0f), 0.0f);
  EXPECT_EQ(XLogX(0.0f), 0.0f);
  EXPECT_EQ(XLogX(-0.0f), 0.0f);
  // Where p is not above 0 nothing is added, not even a NaN by ln.
  EXPECT_EQ(XLogX(-1.0f), 0.0f);
  EXPECT_EQ(XLogX(-kInfF), 0.0f);
  EXPECT_TRUE(std::isnan(XLogX(kNanF)));
  EXPECT_EQ(XLogX(kInfF), kInfF);
  // Subnormal numbers count as the smallest normal one.
  const float tiny = 0x1p-140f;
  EXPECT_NEAR(XLogX(tiny), tiny * std::log(0x1p-126), 2 * 0x1p-149);
}

KINDLING_FOR_EVERY_ISA(Elementary);

}  // namespace
}  // namespace kindling::test
