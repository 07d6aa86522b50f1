// Error norms at one real size, far below the worst-case bounds of the sweeps.
// Source: the goals table of the performance notes, met there by bf16 dot products.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "kindling/operators.h"
#include "support/build_kind.h"
#include "support/compare.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/random.h"

namespace kindling::test {
namespace {

Case RealCase(DType dtype) {
  const int64_t length = kSanitized ? 64 : 512;
  Case spec;
  spec.dtype = dtype;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.num_rows = {length};
  spec.num_keys = {length};
  spec.seed = RunningTest();
  return spec;
}

// Expects error <= goal, and leaves the number in the test's report.
void ExpectError(std::string_view what, Isa isa, double error, double goal) {
  const std::string name = std::string(what) + "_" + std::string(IsaName(isa));
  testing::Test::RecordProperty(name, testing::PrintToString(error));
  std::printf("[ measured ] %-22s %.2e (goal %.1e)\n", name.c_str(), error, goal);
  EXPECT_LE(error, goal) << name;
}

void ExpectErrorsOfStudent(DType dtype, double gradient_goal) {
  Indexer problem(RealCase(dtype));
  // Logits of standard deviation 0.7 or so, as where the goals were measured; every row normalised.
  for (int64_t i = 0; i < problem.w.size(); ++i) problem.w.Set(i, problem.w.Get(i) / 1.5);
  const LseOutputs want_lse = ReferenceSoftmaxLse(problem);
  problem.lse = want_lse.lse.ConvertedTo(DType::kFloat32);
  const GradOutputs want = ReferenceKLLossGrad(problem);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const LseOutputs got_lse = RunSoftmaxLse(problem);
    ExpectError("lse", isa, MaxError(got_lse.lse, want_lse.lse), 1e-6);
    ExpectError("loss_rows", isa, RelativeError(got_lse.loss_rows, want_lse.loss_rows), 1e-6);
    const GradOutputs got = RunKLLossGrad(problem);
    ExpectError("softmax_out", isa, RelativeError(got.softmax_out, want.softmax_out), 1e-6);
    ExpectError("grad_loss_rows", isa, RelativeError(got.loss_rows, want.loss_rows), 1e-6);
    ExpectError("dw", isa, RelativeError(got.dw, want.dw), 3e-6);
    ExpectError("dq", isa, RelativeError(got.dq, want.dq), gradient_goal);
    ExpectError("dk", isa, RelativeError(got.dk, want.dk), gradient_goal);
  }
}

// Loss rows of one sequence in plain fp32, counted from the row's largest logit: with an lse of its
// own, as a forward pass has it, and with the problem's, as gradients do.
struct PlainLossRows {
  std::vector<double> own, given;
};
PlainLossRows ComputePlainLossRows(const Indexer& problem) {
  const Case& spec = problem.spec;
  const int64_t num_heads = spec.num_heads;
  const int64_t width = spec.head_dim;
  const int64_t num_keys = spec.num_keys[0];
  PlainLossRows losses;
  for (int64_t row = 0; row < spec.num_rows[0]; ++row) {
    const int64_t count = row + 1;  // causal, as many rows as keys
    std::vector<float> logits(count, 0.0f);
    for (int64_t key = 0; key < count; ++key) {
      for (int64_t head = 0; head < num_heads; ++head) {
        float score = 0.0f;
        for (int64_t d = 0; d < width; ++d) {
          score += static_cast<float>(problem.q.Get((row * num_heads + head) * width + d)) *
                   static_cast<float>(problem.k.Get(key * width + d));
        }
        const auto weight = static_cast<float>(problem.w.Get(row * num_heads + head));
        logits[key] += weight * std::max(score, 0.0f);
      }
    }
    const float most = *std::max_element(logits.begin(), logits.end());
    float sum = 0.0f;
    float entropy = 0.0f;
    float mass = 0.0f;
    for (int64_t key = 0; key < count; ++key) {
      const auto p = static_cast<float>(problem.p.Get(row * num_keys + key));
      sum += std::exp(logits[key] - most);
      if (p > 0.0f) entropy += p * (std::log(p) - (logits[key] - most));
      mass += p;
    }
    losses.own.push_back(entropy + mass * std::log(sum));
    losses.given.push_back(entropy + mass * (static_cast<float>(problem.lse.Get(row)) - most));
  }
  return losses;
}

// A converged student: its loss is small, and its logits are not.
TEST(Accuracy, LossDoesNotLoseDigitsToTheSizeOfLogits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const double size : {1.0, 300.0, 1e4}) {
      Case spec;
      spec.layout_q = spec.layout_k = Layout::kBsnd;
      spec.mask_mode = MaskMode::kCausal;
      spec.dtype = dtype;
      spec.num_heads = 4;
      spec.head_dim = 32;
      spec.num_rows = spec.num_keys = {300};
      spec.seed = RunningTest();
      Indexer problem(spec);
      double largest = 0.0;
      OwnedTensor lse = ReferenceSoftmaxLse(problem).lse;
      for (int64_t row = 0; row < lse.size(); ++row) {
        largest = std::max(largest, std::abs(lse.Get(row)));
      }
      for (int64_t i = 0; i < problem.w.size(); ++i) {
        problem.w.Set(i, problem.w.Get(i) * size / largest);
      }
      problem.lse = ReferenceSoftmaxLse(problem).lse.ConvertedTo(DType::kFloat32);
      const OwnedTensor softmax = ReferenceKLLossGrad(problem).softmax_out;
      Random random(RunningTest());
      for (int64_t i = 0; i < problem.p.size(); ++i) {
        if (softmax.Get(i) > 0.0) {
          problem.p.Set(i, softmax.Get(i) * std::exp(0.02 * random.Normal()));
        } else if (std::isfinite(problem.p.Get(i))) {
          problem.p.Set(i, 0.0);
        }
      }
      const OwnedTensor want = ReferenceSoftmaxLse(problem).loss_rows;
      const auto norm_of_error = [&](auto get) {
        double sum = 0.0;
        for (int64_t row = 0; row < want.size(); ++row) {
          sum += std::pow(get(row) - want.Get(row), 2);
        }
        return std::sqrt(sum);
      };
      const PlainLossRows plain = ComputePlainLossRows(problem);
      const double own = norm_of_error([&](int64_t row) { return plain.own[row]; });
      const double given = norm_of_error([&](int64_t row) { return plain.given[row]; });
      for (const Isa isa : TestedIsas()) {
        const ScopedIsa forced(isa);
        const OwnedTensor lse_loss = RunSoftmaxLse(problem).loss_rows;
        ExpectError("forward loss, of plain fp32", isa,
                    norm_of_error([&](int64_t row) { return lse_loss.Get(row); }) / own, 2.0);
        const OwnedTensor grad_loss = RunKLLossGrad(problem).loss_rows;
        ExpectError("gradient loss, of plain fp32", isa,
                    norm_of_error([&](int64_t row) { return grad_loss.Get(row); }) / given, 2.0);
      }
    }
  }
}

TEST(Accuracy, StudentFp32) { ExpectErrorsOfStudent(DType::kFloat32, 3e-6); }
TEST(Accuracy, StudentFp16) { ExpectErrorsOfStudent(DType::kFloat16, 6e-4); }
TEST(Accuracy, StudentBf16) { ExpectErrorsOfStudent(DType::kBFloat16, 2.5e-3); }

TEST(Accuracy, Teacher) {
  for (const Teacher::Lse lse : {Teacher::Lse::kGiven, Teacher::Lse::kAbsent}) {
    const Teacher problem(RealCase(DType::kBFloat16), lse);
    const OwnedTensor want = ReferenceAttentionL1Norm(problem);
    for (const Isa isa : TestedIsas()) {
      const ScopedIsa forced(isa);
      ExpectError(lse == Teacher::Lse::kGiven ? "p_lse_given" : "p_no_lse", isa,
                  RelativeError(RunAttentionL1Norm(problem), want), 1e-6);
    }
  }
}

}  // namespace
}  // namespace kindling::test
