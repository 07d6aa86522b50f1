// What operators may not read changes nothing; what nothing stands behind is exactly zero; every
// element is written. (The sweeps check guards around every tensor.)
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <string_view>
#include <vector>

#include "kindling/operators.h"
#include "support/build_kind.h"
#include "support/compare.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

void ForEachIsa(const CheckCase& check) {
  std::vector<Case> cases;
  const std::vector<Case> edges = EdgeCases();
  for (size_t i = 0; i < edges.size(); i += kSanitized ? 4 : 1) cases.push_back(edges[i]);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    SCOPED_TRACE(IsaName(isa));
    ForEachCase(cases, check);
  }
}

TEST(HiddenElements, ChangeNoBitOfTheStudent) {
  ForEachIsa([](const Case& spec) {
    const Indexer hidden(spec, Hidden::kNan);
    const Indexer finite(spec, Hidden::kFinite);
    const testing::AssertionResult same =
        SameBits(RunSoftmaxLse(hidden), RunSoftmaxLse(finite), spec);
    return same ? SameBits(RunKLLossGrad(hidden), RunKLLossGrad(finite), spec) : same;
  });
}

TEST(HiddenElements, ChangeNoBitOfTheTeacher) {
  ForEachIsa([](const Case& spec) {
    for (const Teacher::Lse lse : {Teacher::Lse::kGiven, Teacher::Lse::kAbsent}) {
      const Teacher hidden(spec, lse, Hidden::kNan);
      const Teacher finite(spec, lse, Hidden::kFinite);
      const testing::AssertionResult same =
          SameBits("p", RunAttentionL1Norm(hidden), RunAttentionL1Norm(finite), spec);
      if (!same) return testing::AssertionResult(same);
    }
    return testing::AssertionSuccess();
  });
}

// Keys that each row sees, per allocated row; 0 for unused ones.
std::vector<int64_t> VisibleOfRows(const Case& spec) {
  std::vector<int64_t> visible(Placement(spec).num_allocated_rows);
  for (const RowPlace& place : UsedRows(spec)) visible[place.row] = place.num_visible;
  return visible;
}

// Whether elements [begin, end) hold `bits`.
testing::AssertionResult AllBits(std::string_view name, const OwnedTensor& tensor, int64_t begin,
                                 int64_t end, uint64_t bits, const Case& spec) {
  for (int64_t i = begin; i < end; ++i) {
    if (tensor.Bits(i) == bits) continue;
    return testing::AssertionFailure() << name << tensor.IndexString(i) << ": got " << tensor.Get(i)
                                       << "\n  " << ReproduceCommand(spec);
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult ZerosOfTheStudent(const Case& spec) {
  const uint64_t minus_infinity = std::bit_cast<uint32_t>(-std::numeric_limits<float>::infinity());
  const Indexer problem(spec);
  const LseOutputs lse = RunSoftmaxLse(problem);
  const GradOutputs grad = RunKLLossGrad(problem);
  const Placement placement(spec);
  const std::vector<int64_t> visible = VisibleOfRows(spec);
  testing::AssertionResult zero = testing::AssertionSuccess();
  for (int64_t row = 0; row < placement.num_allocated_rows && zero; ++row) {
    const int64_t columns = row * placement.num_columns;
    zero = AllBits("softmax_out", grad.softmax_out, columns + visible[row],
                   columns + placement.num_columns, 0, spec);
    if (visible[row] > 0) continue;
    const auto row_is_zero = [&](std::string_view name, const OwnedTensor& tensor, int64_t size) {
      if (zero) zero = AllBits(name, tensor, row * size, (row + 1) * size, 0, spec);
    };
    row_is_zero("dq", grad.dq, spec.num_heads * spec.head_dim);
    row_is_zero("dw", grad.dw, spec.num_heads);
    row_is_zero("loss_rows", grad.loss_rows, 1);
    row_is_zero("lse loss_rows", lse.loss_rows, 1);
    if (zero) zero = AllBits("lse", lse.lse, row, row + 1, minus_infinity, spec);
  }
  for (const Placement::Batch& batch : placement.batches) {
    const int64_t num_seen = batch.num_rows > 0 ? batch.num_keys : 0;
    const int64_t width = spec.head_dim;
    if (zero) {
      zero = AllBits("dk", grad.dk, (batch.key_begin + num_seen) * width,
                     (batch.key_begin + batch.num_allocated_keys) * width, 0, spec);
    }
  }
  return zero;
}

TEST(ExactZeros, OfTheStudent) { ForEachIsa(ZerosOfTheStudent); }

TEST(ExactZeros, OfTheTeacher) {
  ForEachIsa([](const Case& spec) {
    const OwnedTensor p = RunAttentionL1Norm(Teacher(spec, Teacher::Lse::kAbsent));
    const int64_t num_columns = p.shape().back();
    const std::vector<int64_t> visible = VisibleOfRows(spec);
    testing::AssertionResult zero = testing::AssertionSuccess();
    for (size_t row = 0; row < visible.size() && zero; ++row) {
      const int64_t begin = static_cast<int64_t>(row) * num_columns;
      zero = AllBits("p", p, begin + visible[row], begin + num_columns, 0, spec);
    }
    return zero;
  });
}

Case CausalCase() {
  Case spec;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 3;
  spec.head_dim = 7;
  spec.num_rows = {90, 5};
  spec.num_keys = {270, 2};
  return spec;
}

// p = 0 in a row: no gradient at all, while softmax_out is what it always is.
TEST(ExactZeros, OfRowsWithoutTeacherMass) {
  const Case spec = CausalCase();
  Indexer problem(spec);
  const OwnedTensor usual = RunKLLossGrad(problem).softmax_out;
  for (int64_t i = 0; i < problem.p.size(); ++i) {
    if (problem.p.Get(i) == problem.p.Get(i)) problem.p.Set(i, 0.0);
  }
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const GradOutputs got = RunKLLossGrad(problem);
    EXPECT_TRUE(AllBits("dq", got.dq, 0, got.dq.size(), 0, spec));
    EXPECT_TRUE(AllBits("dk", got.dk, 0, got.dk.size(), 0, spec));
    EXPECT_TRUE(AllBits("dw", got.dw, 0, got.dw.size(), 0, spec));
    EXPECT_TRUE(AllBits("loss_rows", got.loss_rows, 0, got.loss_rows.size(), 0, spec));
    EXPECT_LT(RelativeError(got.softmax_out, usual), 1e-5);
  }
}

// Keys that no used row sees: all rows of the batch are before the first one that would.
TEST(ExactZeros, OfRowsBeforeTheFirstKey) {
  Case spec = CausalCase();
  spec.num_rows = {40};
  spec.num_keys = {1};
  const GradOutputs got = RunKLLossGrad(Indexer(spec));
  EXPECT_TRUE(AllBits("dq", got.dq, 0, 39 * 21, 0, spec));
  EXPECT_TRUE(AllBits("dw", got.dw, 0, 39 * 3, 0, spec));
}

}  // namespace
}  // namespace kindling::test
