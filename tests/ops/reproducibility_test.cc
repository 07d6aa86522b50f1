// What must not change a bit: threads, plans, optional outputs, strides, layouts, packing,
// sharding, repetition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kindling/operators.h"
#include "ops/launch.h"
#include "support/build_kind.h"
#include "support/compare.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

// Several blocks of rows and chunks of keys, ragged, in all layouts and dtypes.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  Case spec;
  spec.dtype = DType::kBFloat16;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 8;
  spec.num_key_heads = 2;
  spec.head_dim = 40;
  spec.num_rows = {70, 3, 0, 45};
  spec.num_keys = {300, 5, 7, 257};
  spec.spare_columns = 3;
  spec.row_scale = true;
  cases.push_back(spec);

  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.dtype = DType::kFloat16;
  spec.num_heads = 3;
  spec.num_key_heads = 3;
  spec.head_dim = 17;
  spec.cmp_ratio = 4;
  spec.num_rows = {90, 200};
  spec.num_keys = {40, 33};
  spec.residual = {1, 3};
  spec.spare_rows = spec.spare_keys = 2;
  cases.push_back(spec);

  spec = Case();
  spec.layout_k = Layout::kBsnd;
  spec.head_dim = 5;
  spec.num_rows = {300};
  spec.num_keys = {600};
  cases.push_back(spec);

  spec.num_heads = 300;
  spec.head_dim = 16;
  spec.num_rows = {3, 2};
  spec.num_keys = {20, 257};
  spec.wide_grads = true;
  cases.push_back(spec);

  // Few rows over several spans of keys, which workers share.
  spec = Case();
  spec.dtype = DType::kBFloat16;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 3;
  spec.num_key_heads = 3;
  spec.head_dim = 5;
  spec.num_rows = {2, 1};
  spec.num_keys = {2 * kKeysPerSpan + 300, kKeysPerSpan + 1};
  spec.row_scale = true;
  cases.push_back(spec);
  return cases;
}

// Runs `check` for every case on every instruction set.
void ForEachCaseAndIsa(const CheckCase& check) {
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    SCOPED_TRACE(IsaName(isa));
    ForEachCase(Cases(), check);
  }
}

struct Results {
  explicit Results(const Case& spec)
      : indexer(spec), teacher(spec, Teacher::Lse::kAbsent), given(spec, Teacher::Lse::kGiven) {}

  // Whether the operators give what one thread without a record gives.
  testing::AssertionResult SameWith(const RunOptions& options) const {
    const Case& spec = indexer.spec;
    testing::AssertionResult same = SameBits(RunSoftmaxLse(indexer, {}, options), lse, spec);
    if (same) same = SameBits(RunKLLossGrad(indexer, {}, options), grad, spec);
    if (same) same = SameBits("p", RunAttentionL1Norm(teacher, options), p, spec);
    if (same) same = SameBits("p", RunAttentionL1Norm(given, options), p_given, spec);
    return same << "\n  with " << options.num_threads << " threads";
  }
  // The same inputs once more, in whatever mode the processor is in now.
  void Recompute() {
    lse = RunSoftmaxLse(indexer, {}, {.num_threads = 1});
    grad = RunKLLossGrad(indexer, {}, {.num_threads = 1});
    p = RunAttentionL1Norm(teacher, {.num_threads = 1});
    p_given = RunAttentionL1Norm(given, {.num_threads = 1});
  }
  void SetRecord(const OwnedTensor& record) {
    indexer.metadata = teacher.metadata = given.metadata = record;
  }

  Indexer indexer;
  Teacher teacher, given;
  LseOutputs lse = RunSoftmaxLse(indexer, {}, {.num_threads = 1});
  GradOutputs grad = RunKLLossGrad(indexer, {}, {.num_threads = 1});
  OwnedTensor p = RunAttentionL1Norm(teacher, {.num_threads = 1});
  OwnedTensor p_given = RunAttentionL1Norm(given, {.num_threads = 1});
};

TEST(Reproducibility, ThreadsAndPlans) {
  ForEachCaseAndIsa([](const Case& spec) {
    Results results(spec);
    std::vector<OwnedTensor> records = {OwnedTensor()};
    for (const int64_t num_cores : {1, 2, 24, 40}) records.push_back(MakeRecord(spec, num_cores));
    records.push_back(MakeRecord(spec, 3, PlanPolicy::kBalanced));
    if (kSanitized) records.erase(records.begin() + 1, records.end() - 2);
    for (const OwnedTensor& record : records) {
      results.SetRecord(record);
      for (const int64_t num_threads : {1, 2, 3, 7, 64}) {
        if (kSanitized && num_threads == 1) continue;  // as the results to compare with
        if (num_threads == 64 && (kSanitized || record.present())) continue;  // once will do
        const testing::AssertionResult same = results.SameWith({.num_threads = num_threads});
        if (!same) return testing::AssertionResult(same);
      }
    }
    return testing::AssertionSuccess();
  });
}

TEST(Reproducibility, Repetition) {
  ForEachCaseAndIsa([](const Case& spec) {
    const Results results(spec);
    for (int run = 0; run < (kSanitized ? 2 : 20); ++run) {
      const testing::AssertionResult same = results.SameWith({.num_threads = 5});
      if (!same) return testing::AssertionResult(same);
    }
    return testing::AssertionSuccess();
  });
}

// Workers round as the caller does, whatever mode they were started in.
TEST(Reproducibility, FloatingPointModeOfTheCaller) {
  const Case spec = Cases()[0];
  const Results nearest(spec);
  EXPECT_TRUE(nearest.SameWith({.num_threads = 7}));
  ASSERT_EQ(std::fesetround(FE_TOWARDZERO), 0);
  Results towards_zero = nearest;
  towards_zero.Recompute();
  const testing::AssertionResult same = towards_zero.SameWith({.num_threads = 7});
  ASSERT_EQ(std::fesetround(FE_TONEAREST), 0);
  EXPECT_TRUE(same);
  EXPECT_FALSE(SameBits(towards_zero.grad, nearest.grad, spec)) << "the mode was not in force";
  EXPECT_TRUE(nearest.SameWith({.num_threads = 7})) << "the mode has stuck to the workers";
}

TEST(Reproducibility, OptionalOutputs) {
  ForEachCaseAndIsa([](const Case& spec) {
    const Indexer problem(spec);
    const GradOutputs all = RunKLLossGrad(problem);
    const GradOutputs::Wanted subsets[] = {{.softmax_out = false, .loss_rows = false},
                                           {.softmax_out = true, .loss_rows = false},
                                           {.softmax_out = false, .loss_rows = true}};
    for (const auto& wanted : subsets) {
      const testing::AssertionResult same = SameBits(RunKLLossGrad(problem, wanted), all, spec);
      if (!same) return testing::AssertionResult(same);
    }
    return SameBits(RunSoftmaxLse(problem, {.loss_rows = false}), RunSoftmaxLse(problem), spec);
  });
}

TEST(Reproducibility, Strides) {
  ForEachCaseAndIsa([](const Case& spec) {
    const Results dense(spec);
    for (const Spread spread : {Spread::kGaps, Spread::kReversed, Spread::kTransposed}) {
      Results strided = dense;
      for (OwnedTensor* tensor :
           {&strided.indexer.q, &strided.indexer.k, &strided.indexer.w, &strided.indexer.p,
            &strided.indexer.lse, &strided.indexer.row_scale, &strided.teacher.q,
            &strided.teacher.k, &strided.given.q, &strided.given.k, &strided.given.lse}) {
        *tensor = tensor->SpreadAs(spread);
      }
      const testing::AssertionResult same = strided.SameWith({.num_threads = 2});
      if (!same) return testing::AssertionResult(same);
    }
    return testing::AssertionSuccess();
  });
}

// All rows may share one row of memory.
TEST(Reproducibility, StridesOfZero) {
  Case spec;
  spec.num_heads = 2;
  spec.head_dim = 3;
  spec.num_rows = {5};
  spec.num_keys = {20};
  Indexer problem(spec);
  const auto repeat_first_row = [](OwnedTensor& tensor, int64_t row_elements) {
    for (int64_t i = row_elements; i < tensor.size(); ++i) {
      tensor.Set(i, tensor.Get(i % row_elements));
    }
  };
  repeat_first_row(problem.w, 2);
  repeat_first_row(problem.p, 20);
  repeat_first_row(problem.k, 3);
  const GradOutputs want = RunKLLossGrad(problem);
  GradOutputs got(problem, {});
  KLLossGradArgs args = MakeArgs(problem, got);
  args.w.strides[0] = args.p.strides[0] = args.k.strides[0] = 0;
  ASSERT_TRUE(KLLossGrad(args).ok());
  EXPECT_TRUE(SameBits(got, want, spec));
}

// Where the tokens lie does not matter: a dense batch, a packed one, and a mixture.
TEST(Reproducibility, Layouts) {
  Case spec;
  spec.num_heads = 4;
  spec.head_dim = 9;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_rows = {70, 70};
  spec.num_keys = {290, 290};
  const Indexer packed(spec);
  const LseOutputs want_lse = RunSoftmaxLse(packed);
  const GradOutputs want = RunKLLossGrad(packed);
  const auto expect_same = [&](std::string_view name, const OwnedTensor& got,
                               const OwnedTensor& expected) {
    ASSERT_EQ(got.size(), expected.size()) << name;
    for (int64_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got.Bits(i), expected.Bits(i)) << name << got.IndexString(i);
    }
  };
  for (const Layout layout_q : {Layout::kTnd, Layout::kBsnd}) {
    for (const Layout layout_k : {Layout::kTnd, Layout::kBsnd}) {
      spec.layout_q = layout_q;
      spec.layout_k = layout_k;
      Indexer problem(spec);
      const auto take_values = [](OwnedTensor& to, const OwnedTensor& from) {
        ASSERT_EQ(to.size(), from.size());
        for (int64_t i = 0; i < to.size(); ++i) to.Set(i, from.Get(i));
      };
      take_values(problem.q, packed.q);
      take_values(problem.k, packed.k);
      take_values(problem.w, packed.w);
      take_values(problem.p, packed.p);
      take_values(problem.lse, packed.lse);
      const LseOutputs lse = RunSoftmaxLse(problem);
      const GradOutputs grad = RunKLLossGrad(problem);
      expect_same("lse", lse.lse, want_lse.lse);
      expect_same("dq", grad.dq, want.dq);
      expect_same("dk", grad.dk, want.dk);
      expect_same("dw", grad.dw, want.dw);
      expect_same("softmax_out", grad.softmax_out, want.softmax_out);
    }
  }
}

// 16-bit inputs are widened exactly: the same values in fp32 give the same fp32 results, and what
// is stored in 16 bits is the fp32 gradient, rounded.
TEST(Reproducibility, InputsWidenExactly) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    ForEachCaseAndIsa([dtype](Case spec) {
      spec.dtype = dtype;
      spec.wide_grads = false;
      Indexer narrow(spec);
      const GradOutputs rounded = RunKLLossGrad(narrow);
      narrow.spec.wide_grads = true;
      const GradOutputs wide_grads = RunKLLossGrad(narrow);
      Indexer wide = narrow;
      wide.q = narrow.q.ConvertedTo(DType::kFloat32);
      wide.k = narrow.k.ConvertedTo(DType::kFloat32);
      testing::AssertionResult same = testing::AssertionSuccess();
      if (CurrentKernels(dtype).values_per_word == 1) {  // else they are multiplied as bf16
        same = SameBits(RunKLLossGrad(wide), wide_grads, spec);
        if (same) same = SameBits(RunSoftmaxLse(wide), RunSoftmaxLse(narrow), spec);
      }
      if (same) same = SameBits("dq", rounded.dq, wide_grads.dq.ConvertedTo(dtype), spec);
      if (same) same = SameBits("dk", rounded.dk, wide_grads.dk.ConvertedTo(dtype), spec);
      return same;
    });
  }
}

}  // namespace
}  // namespace kindling::test
