// The reference proves itself: its gradients are the derivatives of its loss, and the spec's
// numbers come out.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/problem.h"
#include "support/random.h"

namespace kindling::test {
namespace {

// fp64 outputs may be compared to about this, relative to 1.
constexpr double kDoubleError = 1e-13;

double SumOf(const OwnedTensor& tensor) {
  double sum = 0.0;
  for (int64_t i = 0; i < tensor.size(); ++i) sum += tensor.Get(i);
  return sum;
}

// sum of row_scale * loss_row, with lse that follows from q, k and w: what KLLossGrad
// differentiates.
double Loss(const Indexer& problem) {
  const OwnedTensor loss_rows = ReferenceSoftmaxLse(problem).loss_rows;
  double loss = 0.0;
  for (const RowPlace& place : UsedRows(problem.spec)) {
    if (place.num_visible == 0) continue;
    const double row_scale = problem.row_scale.present() ? problem.row_scale.Get(place.row) : 1.0;
    loss += row_scale * loss_rows.Get(place.row);
  }
  return loss;
}

// A problem in fp64 whose scores all keep away from the kink of the relu.
Indexer SmoothProblem(Case spec) {
  for (int attempt = 0;; ++attempt) {
    spec.seed = RunningTest() + "/" + std::to_string(attempt);
    const Indexer problem = Indexer(spec).Widened();
    bool smooth = true;
    for (const RowPlace& place : UsedRows(spec)) {
      for (int64_t head = 0; head < spec.num_heads; ++head) {
        for (int64_t key = 0; key < place.num_visible; ++key) {
          double score = 0.0;
          for (int64_t d = 0; d < spec.head_dim; ++d) {
            score += problem.q.Get((place.row * spec.num_heads + head) * spec.head_dim + d) *
                     problem.k.Get((place.key_begin + key) * spec.head_dim + d);
          }
          smooth = smooth && std::abs(score) > 1e-3;
        }
      }
    }
    if (smooth) return problem;
  }
}

// Moves every element of one input a little both ways and compares the slope with the gradient.
void ExpectSlopes(Indexer problem, OwnedTensor Indexer::* input, const OwnedTensor& gradient) {
  // The error of a central difference is about step^2 for loss terms of order 1, and 1e-16 / step
  // from the loss itself.
  constexpr double kStep = 1e-5;
  constexpr double kSlopeError = 1e-8;
  OwnedTensor& tensor = problem.*input;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double value = tensor.Get(i);
    if (std::isnan(value)) {  // not to be read
      EXPECT_EQ(gradient.Get(i), 0.0);
      continue;
    }
    tensor.Set(i, value + kStep);
    const double above = Loss(problem);
    tensor.Set(i, value - kStep);
    const double below = Loss(problem);
    tensor.Set(i, value);
    ASSERT_NEAR(gradient.Get(i), (above - below) / (2 * kStep), kSlopeError)
        << gradient.IndexString(i) << " of " << problem.spec;
  }
}

void ExpectGradientsOf(const Case& spec) {
  Indexer problem = SmoothProblem(spec);
  problem.lse = ReferenceSoftmaxLse(problem).lse;
  const GradOutputs grad = ReferenceKLLossGrad(problem);
  ExpectSlopes(problem, &Indexer::q, grad.dq);
  ExpectSlopes(problem, &Indexer::k, grad.dk);
  ExpectSlopes(problem, &Indexer::w, grad.dw);
  EXPECT_NEAR(SumOf(ReferenceSoftmaxLse(problem).loss_rows), SumOf(grad.loss_rows), kDoubleError);
}

Case SmallCase() {
  Case spec;
  spec.num_heads = 2;
  spec.head_dim = 3;
  spec.num_rows = {4, 2};
  spec.num_keys = {5, 3};
  return spec;
}

TEST(Reference, GradientsAreSlopesOfTheLoss) { ExpectGradientsOf(SmallCase()); }

TEST(Reference, GradientsAreSlopesOfTheLossWithRowScale) {
  Case spec = SmallCase();
  spec.row_scale = true;
  ExpectGradientsOf(spec);
}

TEST(Reference, GradientsAreSlopesOfTheLossWhereCausal) {
  Case spec = SmallCase();
  spec.mask_mode = MaskMode::kCausal;
  spec.num_rows = {7, 2};  // the first rows see no key
  ExpectGradientsOf(spec);
  spec.cmp_ratio = 3;
  spec.residual = {1, 2};
  spec.num_keys = {2, 3};
  ExpectGradientsOf(spec);
  spec.cmp_ratio = 2;
  spec.residual = {0, 1};
  spec.row_scale = true;
  ExpectGradientsOf(spec);
}

TEST(Reference, GradientsAreSlopesOfTheLossInDenseBatches) {
  Case spec = SmallCase();
  spec.layout_q = Layout::kBsnd;
  spec.spare_rows = 1;
  spec.spare_keys = 2;
  ExpectGradientsOf(spec);
  spec.layout_k = Layout::kBsnd;
  ExpectGradientsOf(spec);
}

// Source: the micro case of the spec.
TEST(Reference, MicroCase) {
  Case spec;
  spec.head_dim = 4;
  spec.num_rows = {1};
  spec.num_keys = {2};
  Indexer problem = Indexer(spec).Widened();
  problem.q.Fill(0.0);
  problem.k.Fill(0.0);
  problem.q.Set(0, 1.0);
  problem.k.Set(0, 1.0);
  problem.k.Set(4, 2.0);
  problem.w.Fill(1.0);
  problem.lse.Fill(2.3132617);
  problem.p.Fill(0.5);
  GradOutputs got = ReferenceKLLossGrad(problem);
  constexpr double kDigits = 1e-7;  // of the spec's numbers
  EXPECT_NEAR(got.softmax_out.Get(0), 0.2689414, kDigits);
  EXPECT_NEAR(got.softmax_out.Get(1), 0.7310586, kDigits);
  EXPECT_NEAR(got.dw.Get(0), 0.2310586, kDigits);
  EXPECT_NEAR(got.dq.Get(0), 0.2310586, kDigits);
  EXPECT_NEAR(got.dk.Get(0), -0.2310586, kDigits);
  EXPECT_NEAR(got.dk.Get(4), 0.2310586, kDigits);
  problem.p.Fill(0.25);
  got = ReferenceKLLossGrad(problem);
  EXPECT_NEAR(got.dk.Get(0), -0.1155293, kDigits);
  EXPECT_NEAR(got.dk.Get(4), 0.1155293, kDigits);
  problem.p.Fill(0.0);
  got = ReferenceKLLossGrad(problem);
  EXPECT_EQ(got.dq.Get(0), 0.0);
  EXPECT_EQ(got.dk.Get(0), 0.0);
  EXPECT_EQ(got.dk.Get(4), 0.0);
  EXPECT_EQ(got.dw.Get(0), 0.0);
  EXPECT_EQ(got.loss_rows.Get(0), 0.0);
  EXPECT_NEAR(got.softmax_out.Get(0), 0.2689414, kDigits);
  EXPECT_NEAR(ReferenceSoftmaxLse(problem).lse.Get(0), 2.3132617, kDigits);
}

// Source: the spec's example of the log-sum-exp, whose inputs are rounded to fp16 and fp32.
TEST(Reference, ConstantInputsGiveTheSpecsValue) {
  Case spec;
  spec.dtype = DType::kFloat16;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.num_rows = {2};
  spec.num_keys = {256};
  Indexer problem(spec);
  problem.q.Fill(0.2);
  problem.k.Fill(0.1);
  problem.w.Fill(0.005);
  const OwnedTensor lse = ReferenceSoftmaxLse(problem).lse;
  EXPECT_NEAR(lse.Get(0), 5.6475274, 1e-6);
  EXPECT_NEAR(lse.Get(1), 5.6475274, 1e-6);
}

// Source: the spec's table of visible keys, rows with few tokens a key.
TEST(Reference, RowsSeeThePrefixOfTheSpecsTable) {
  const struct {
    int64_t num_rows, num_keys, cmp_ratio, residual;
    std::vector<int64_t> num_visible;
  } table[] = {{16, 4, 1, 0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}},
               {18, 4, 4, 2, {0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4}},
               {10, 3, 4, 1, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3}},
               {13, 4, 4, 2, {1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4}},
               {8, 3, 4, 3, {2, 2, 2, 2, 3, 3, 3, 3}}};
  for (const auto& entry : table) {
    Case spec;
    spec.mask_mode = MaskMode::kCausal;
    spec.cmp_ratio = entry.cmp_ratio;
    spec.num_rows = {entry.num_rows};
    spec.num_keys = {entry.num_keys};
    spec.residual = {entry.residual};
    const OwnedTensor y = ReferenceKLLossGrad(Indexer(spec)).softmax_out;
    for (int64_t i = 0; i < y.size(); ++i) {
      EXPECT_EQ(y.Get(i) > 0.0, i % entry.num_keys < entry.num_visible[i / entry.num_keys])
          << y.IndexString(i) << " of " << spec;
    }
  }
}

TEST(Reference, WritesEveryElement) {
  for (const Layout layout : {Layout::kTnd, Layout::kBsnd}) {
    Case spec = SmallCase();
    spec.layout_q = spec.layout_k = layout;
    spec.mask_mode = MaskMode::kCausal;
    spec.num_rows = {7, 0};
    spec.spare_rows = spec.spare_keys = 2;
    const Indexer problem(spec);
    const LseOutputs lse = ReferenceSoftmaxLse(problem);
    const GradOutputs grad = ReferenceKLLossGrad(problem);
    const OwnedTensor p = ReferenceAttentionL1Norm(Teacher(spec, Teacher::Lse::kAbsent));
    for (const OwnedTensor* output : {&lse.lse, &lse.loss_rows, &grad.dq, &grad.dk, &grad.dw,
                                      &grad.softmax_out, &grad.loss_rows, &p}) {
      for (int64_t i = 0; i < output->size(); ++i) {
        EXPECT_FALSE(std::isnan(output->Get(i))) << output->IndexString(i);
      }
    }
    // Rows that see no key, used or not.
    EXPECT_EQ(lse.lse.Get(0), -std::numeric_limits<double>::infinity());
    EXPECT_EQ(lse.lse.Get(lse.lse.size() - 1), -std::numeric_limits<double>::infinity());
  }
}

TEST(Reference, SoftmaxSumsToOne) {
  Case spec = SmallCase();
  spec.mask_mode = MaskMode::kCausal;
  Indexer problem = Indexer(spec).Widened();
  problem.lse = ReferenceSoftmaxLse(problem).lse;
  const OwnedTensor y = ReferenceKLLossGrad(problem).softmax_out;
  EXPECT_NEAR(SumOf(y), 6.0, kDoubleError);  // six rows, all of which see a key
}

TEST(Reference, TeacherRowsSumToOne) {
  Case spec = SmallCase();
  spec.num_heads = 6;
  for (const int64_t num_key_heads : {1, 2, 3, 6}) {
    spec.num_key_heads = num_key_heads;
    const OwnedTensor p = ReferenceAttentionL1Norm(Teacher(spec, Teacher::Lse::kAbsent));
    EXPECT_NEAR(SumOf(p), 6.0, kDoubleError) << num_key_heads;
  }
}

// p = (1/G) sum_g exp(scale q.k - lse_g), one number at a time.
TEST(Reference, TeacherIsItsFormula) {
  Case spec;
  spec.num_heads = 4;
  spec.num_key_heads = 2;
  spec.head_dim = 1;
  spec.num_rows = {1};
  spec.num_keys = {2};
  Teacher problem = Teacher(spec, Teacher::Lse::kGiven).Widened();
  problem.softmax_scale = 0.5;
  for (int64_t i = 0; i < 4; ++i) {
    problem.q.Set(i, static_cast<double>(i + 1));  // heads 1, 2, 3, 4
    problem.lse.Set(i, 0.25 * static_cast<double>(i));
  }
  const double keys[] = {0.1, 0.2, 0.3, 0.4};  // [key][key head]
  for (int64_t i = 0; i < 4; ++i) problem.k.Set(i, keys[i]);
  const OwnedTensor p = ReferenceAttentionL1Norm(problem);
  const double want_0 = (std::exp(0.5 * 1 * 0.1) + std::exp(0.5 * 2 * 0.1 - 0.25) +
                         std::exp(0.5 * 3 * 0.2 - 0.5) + std::exp(0.5 * 4 * 0.2 - 0.75)) /
                        4;
  const double want_1 = (std::exp(0.5 * 1 * 0.3) + std::exp(0.5 * 2 * 0.3 - 0.25) +
                         std::exp(0.5 * 3 * 0.4 - 0.5) + std::exp(0.5 * 4 * 0.4 - 0.75)) /
                        4;
  EXPECT_NEAR(p.Get(0), want_0, kDoubleError);
  EXPECT_NEAR(p.Get(1), want_1, kDoubleError);
}

// A given lse is what the operator would have found itself, or any other number.
TEST(Reference, TeacherTakesTheLseOfTheMainAttention) {
  Case spec = SmallCase();
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 4;
  spec.num_key_heads = 2;
  Teacher problem = Teacher(spec, Teacher::Lse::kGiven).Widened();
  problem.softmax_scale = 0.7;
  for (const RowPlace& place : UsedRows(spec)) {
    for (int64_t head = 0; head < 4; ++head) {
      double sum = 0.0;
      for (int64_t key = place.key_begin; key < place.key_begin + place.num_visible; ++key) {
        double score = 0.0;
        for (int64_t d = 0; d < spec.head_dim; ++d) {
          score += problem.q.Get((place.row * 4 + head) * spec.head_dim + d) *
                   problem.k.Get((key * 2 + head / 2) * spec.head_dim + d);
        }
        sum += std::exp(0.7 * score);
      }
      problem.lse.Set(place.row * 4 + head, std::log(sum));
    }
  }
  const OwnedTensor given = ReferenceAttentionL1Norm(problem);
  Teacher twice_as_much = problem;
  for (int64_t i = 0; i < problem.lse.size(); ++i) {
    twice_as_much.lse.Set(i, problem.lse.Get(i) - std::log(2.0));
  }
  const OwnedTensor doubled = ReferenceAttentionL1Norm(twice_as_much);
  problem.lse = OwnedTensor();
  const OwnedTensor found = ReferenceAttentionL1Norm(problem);
  EXPECT_NEAR(SumOf(found), 6.0, kDoubleError);
  for (int64_t i = 0; i < given.size(); ++i) {
    EXPECT_NEAR(given.Get(i), found.Get(i), kDoubleError) << given.IndexString(i);
    EXPECT_NEAR(doubled.Get(i), 2.0 * found.Get(i), kDoubleError) << given.IndexString(i);
  }
}

// What no operator may read can hold anything.
TEST(Reference, HiddenElementsChangeNothing) {
  for (const Layout layout : {Layout::kTnd, Layout::kBsnd}) {
    Case spec = SmallCase();
    spec.layout_q = spec.layout_k = layout;
    spec.mask_mode = MaskMode::kCausal;
    spec.num_rows = {7, 2};
    spec.spare_rows = spec.spare_keys = 1;
    spec.row_scale = true;
    const Indexer nan(spec, Hidden::kNan);
    const Indexer finite(spec, Hidden::kFinite);
    const LseOutputs lse = ReferenceSoftmaxLse(nan);
    const GradOutputs grad = ReferenceKLLossGrad(nan);
    EXPECT_TRUE(SameBits(lse, ReferenceSoftmaxLse(finite), spec));
    EXPECT_TRUE(SameBits(grad, ReferenceKLLossGrad(finite), spec));
    for (const Teacher::Lse kind : {Teacher::Lse::kGiven, Teacher::Lse::kAbsent}) {
      const OwnedTensor p = ReferenceAttentionL1Norm(Teacher(spec, kind, Hidden::kNan));
      const Teacher open(spec, kind, Hidden::kFinite);
      EXPECT_TRUE(SameBits("p", p, ReferenceAttentionL1Norm(open), spec));
    }
  }
}

// A problem whose row 1 sees the first three of its batch's five keys, with one input spoilt.
class SpoiltRow : public testing::Test {
 protected:
  static constexpr int64_t kRow = 1;
  static constexpr int64_t kNumSeen = 3;
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

  static Case Spec() {
    Case spec = SmallCase();
    spec.mask_mode = MaskMode::kCausal;
    spec.row_scale = true;
    return spec;
  }

  // Every slice but one is, bit for bit, what it is without the spoilt input.
  static void ExpectOthersUntouched(const OwnedTensor& got, const OwnedTensor& clean,
                                    int64_t slice_size, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < got.size(); ++i) {
      if (i / slice_size >= begin && i / slice_size < end) continue;
      EXPECT_EQ(got.Bits(i), clean.Bits(i)) << got.IndexString(i);
    }
  }
  void ExpectOthersUntouched(const GradOutputs& got) const {
    ExpectOthersUntouched(got.dq, clean_.dq, 6, kRow, kRow + 1);
    ExpectOthersUntouched(got.dw, clean_.dw, 2, kRow, kRow + 1);
    ExpectOthersUntouched(got.softmax_out, clean_.softmax_out, 5, kRow, kRow + 1);
    ExpectOthersUntouched(got.loss_rows, clean_.loss_rows, 1, kRow, kRow + 1);
    ExpectOthersUntouched(got.dk, clean_.dk, 3, 0, kNumSeen);
  }

  Indexer problem_ = Indexer(Spec()).Widened();
  const GradOutputs clean_ = ReferenceKLLossGrad(problem_);
};

TEST_F(SpoiltRow, ByItsQuery) {
  problem_.q.Set(kRow * 6 + 4, kNan);
  const GradOutputs got = ReferenceKLLossGrad(problem_);
  ExpectOthersUntouched(got);
  for (int64_t key = 0; key < 5; ++key) {
    EXPECT_EQ(std::isnan(got.softmax_out.Get(kRow * 5 + key)), key < kNumSeen) << key;
  }
  EXPECT_TRUE(std::isnan(got.dw.Get(kRow * 2)));
  EXPECT_TRUE(std::isnan(got.dw.Get(kRow * 2 + 1)));
  EXPECT_TRUE(std::isnan(got.loss_rows.Get(kRow)));
  EXPECT_TRUE(std::isnan(ReferenceSoftmaxLse(problem_).lse.Get(kRow)));
}

TEST_F(SpoiltRow, ByItsWeights) {
  problem_.w.Set(kRow * 2, kNan);
  const GradOutputs got = ReferenceKLLossGrad(problem_);
  ExpectOthersUntouched(got);
  EXPECT_TRUE(std::isnan(got.dw.Get(kRow * 2 + 1)));
  EXPECT_TRUE(std::isnan(got.loss_rows.Get(kRow)));
}

TEST_F(SpoiltRow, ByItsTeacher) {
  problem_.p.Set(kRow * 5 + 2, kNan);
  const GradOutputs got = ReferenceKLLossGrad(problem_);
  ExpectOthersUntouched(got);
  for (int64_t key = 0; key < 5; ++key) {  // y is no function of p
    EXPECT_EQ(got.softmax_out.Bits(kRow * 5 + key), clean_.softmax_out.Bits(kRow * 5 + key));
  }
  EXPECT_TRUE(std::isnan(got.dw.Get(kRow * 2)));
  EXPECT_TRUE(std::isnan(got.loss_rows.Get(kRow)));
  EXPECT_TRUE(std::isnan(ReferenceSoftmaxLse(problem_).loss_rows.Get(kRow)));
}

TEST_F(SpoiltRow, ByItsScale) {
  problem_.row_scale.Set(kRow, kNan);
  const GradOutputs got = ReferenceKLLossGrad(problem_);
  ExpectOthersUntouched(got);
  EXPECT_TRUE(std::isnan(got.dw.Get(kRow * 2)));
  EXPECT_EQ(got.loss_rows.Bits(kRow), clean_.loss_rows.Bits(kRow));  // which is not scaled
}

TEST_F(SpoiltRow, ByAKeyThatOnlyLaterRowsSee) {
  problem_.k.Set(4 * 3, kNan);  // of the last key, which row 3 alone sees
  const GradOutputs got = ReferenceKLLossGrad(problem_);
  ExpectOthersUntouched(got.dq, clean_.dq, 6, 3, 4);
  ExpectOthersUntouched(got.dw, clean_.dw, 2, 3, 4);
  ExpectOthersUntouched(got.softmax_out, clean_.softmax_out, 5, 3, 4);
  EXPECT_TRUE(std::isnan(got.softmax_out.Get(3 * 5 + 4)));
  EXPECT_TRUE(std::isnan(got.dw.Get(3 * 2)));
  EXPECT_TRUE(std::isnan(ReferenceSoftmaxLse(problem_).lse.Get(3)));
}

TEST(Reference, TakesFp64Only) {
  const Case spec = SmallCase();
  const Indexer narrow(spec);
  LseOutputs lse(narrow, {});
  EXPECT_EQ(reference::SoftmaxLse(MakeArgs(narrow, lse)).code(), StatusCode::kInvalidDtype);
  GradOutputs grad(narrow, {});
  EXPECT_EQ(reference::KLLossGrad(MakeArgs(narrow, grad)).code(), StatusCode::kInvalidDtype);
  const Teacher teacher(spec, Teacher::Lse::kAbsent);
  OwnedTensor p = TeacherOutput(teacher);
  EXPECT_EQ(reference::AttentionL1Norm(MakeArgs(teacher, p)).code(), StatusCode::kInvalidDtype);

  const Indexer wide = narrow.Widened();
  LseOutputs wide_lse(wide, {});
  EXPECT_EQ(SoftmaxLse(MakeArgs(wide, wide_lse)).code(), StatusCode::kInvalidDtype);
}

// One tensor after the other in fp32, the others in fp64: each is named and no output is written.
TEST(Reference, NamesTheTensorThatIsNotFp64) {
  Case spec = SmallCase();
  spec.row_scale = true;
  const Indexer problem = Indexer(spec).Widened();
  const auto expect_named = [](const Status& status, const std::string& name) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidDtype) << name;
    EXPECT_EQ(status.message().substr(0, status.message().find(':')), name);
  };
  const struct {
    ConstTensor KLLossGradArgs::* tensor;
    const char* name;
  } inputs[] = {{&KLLossGradArgs::q, "q"},     {&KLLossGradArgs::k, "k"},
                {&KLLossGradArgs::w, "w"},     {&KLLossGradArgs::p, "p"},
                {&KLLossGradArgs::lse, "lse"}, {&KLLossGradArgs::row_scale, "row_scale"}};
  const struct {
    Tensor KLLossGradArgs::* tensor;
    const char* name;
  } outputs[] = {{&KLLossGradArgs::dq, "dq"},
                 {&KLLossGradArgs::dk, "dk"},
                 {&KLLossGradArgs::dw, "dw"},
                 {&KLLossGradArgs::softmax_out, "softmax_out"},
                 {&KLLossGradArgs::loss_rows, "loss_rows"}};
  GradOutputs got(problem, {});
  const KLLossGradArgs good = MakeArgs(problem, got);
  for (const auto& [tensor, name] : inputs) {
    KLLossGradArgs args = good;
    (args.*tensor).dtype = DType::kFloat32;
    expect_named(reference::KLLossGrad(args), name);
  }
  for (const auto& [tensor, name] : outputs) {
    KLLossGradArgs args = good;
    (args.*tensor).dtype = DType::kFloat32;
    expect_named(reference::KLLossGrad(args), name);
  }
  for (const OwnedTensor* output : {&got.dq, &got.dk, &got.dw, &got.softmax_out, &got.loss_rows}) {
    for (int64_t i = 0; i < output->size(); ++i) EXPECT_TRUE(output->Unwritten(i));
  }
  EXPECT_TRUE(reference::KLLossGrad(good).ok());
}

}  // namespace
}  // namespace kindling::test
