// Sequences of a packed batch computed one by one, and rows of one sequence computed apart (context
// parallel): bitwise the same rows.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/error_bounds.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

// Copies elements [from_begin, from_begin + count) of `from` to `to`.
void CopyElements(OwnedTensor& to, int64_t to_begin, const OwnedTensor& from, int64_t from_begin,
                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) to.Set(to_begin + i, from.Get(from_begin + i));
}

// Rows [row_begin, row_end) of one sequence as a problem of its own.
struct Shard {
  Shard(const Indexer& whole, int64_t batch, int64_t row_begin, int64_t row_end)
      : first_row(Placement(whole.spec).batches[batch].row_begin + row_begin),
        first_key(Placement(whole.spec).batches[batch].key_begin),
        problem(CaseOf(whole.spec, batch, row_begin, row_end)) {
    const Case& spec = whole.spec;
    const int64_t num_rows = row_end - row_begin;
    const int64_t num_keys = problem.spec.num_keys[0];
    const int64_t pair = spec.num_heads * spec.head_dim;
    const int64_t num_columns = Placement(spec).num_columns;
    CopyElements(problem.q, 0, whole.q, first_row * pair, num_rows * pair);
    CopyElements(problem.w, 0, whole.w, first_row * spec.num_heads, num_rows * spec.num_heads);
    CopyElements(problem.lse, 0, whole.lse, first_row, num_rows);
    if (spec.row_scale) CopyElements(problem.row_scale, 0, whole.row_scale, first_row, num_rows);
    CopyElements(problem.k, 0, whole.k, first_key * spec.head_dim, num_keys * spec.head_dim);
    for (int64_t row = 0; row < num_rows; ++row) {
      CopyElements(problem.p, row * num_keys, whole.p, (first_row + row) * num_columns, num_keys);
    }
  }

  // Source: the spec's chain property for context parallelism.
  static Case CaseOf(const Case& spec, int64_t batch, int64_t row_begin, int64_t row_end) {
    Case shard = spec;
    shard.layout_q = shard.layout_k = Layout::kTnd;
    shard.num_rows = {row_end - row_begin};
    shard.num_keys = {spec.num_keys[batch]};
    shard.spare_rows = shard.spare_keys = shard.spare_columns = 0;
    const int64_t residual = spec.residual.empty() ? 0 : spec.residual[batch];
    if (spec.mask_mode == MaskMode::kCausal) {
      const int64_t tokens =
          spec.num_keys[batch] * spec.cmp_ratio + residual - (spec.num_rows[batch] - row_end);
      shard.num_keys = {tokens < 0 ? 0 : tokens / spec.cmp_ratio};
      shard.residual = {tokens < 0 ? 0 : tokens % spec.cmp_ratio};
    } else if (!spec.residual.empty()) {
      shard.residual = {residual};
    }
    return shard;
  }

  int64_t first_row;  // of the whole
  int64_t first_key;
  Indexer problem;
};

// Whether slice `index` of `part` is slice `whole_index` of `whole`, `count` elements of slices
// that may differ in size.
testing::AssertionResult SameSlice(const char* name, const OwnedTensor& part, int64_t part_begin,
                                   const OwnedTensor& whole, int64_t whole_begin, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (part.Bits(part_begin + i) == whole.Bits(whole_begin + i)) continue;
    return testing::AssertionFailure()
           << name << whole.IndexString(whole_begin + i) << ": " << part.Get(part_begin + i)
           << " of the part is not bitwise " << whole.Get(whole_begin + i) << " of the whole";
  }
  return testing::AssertionSuccess();
}

// Whether all outputs of a shard's rows are those of the whole.
testing::AssertionResult SameRows(const Shard& shard, const Case& spec, const LseOutputs& whole_lse,
                                  const GradOutputs& whole, const GradOutputs& part) {
  const LseOutputs part_lse = RunSoftmaxLse(shard.problem, {}, {.num_threads = 2});
  const int64_t num_rows = shard.problem.spec.num_rows[0];
  const int64_t num_keys = shard.problem.spec.num_keys[0];
  const int64_t pair = spec.num_heads * spec.head_dim;
  const int64_t num_columns = Placement(spec).num_columns;
  const int64_t first = shard.first_row;
  const auto rows = [&](const char* name, const OwnedTensor& got, const OwnedTensor& want,
                        int64_t row_elements) {
    return SameSlice(name, got, 0, want, first * row_elements, num_rows * row_elements);
  };
  testing::AssertionResult same = rows("dq", part.dq, whole.dq, pair);
  if (same) same = rows("dw", part.dw, whole.dw, spec.num_heads);
  if (same) same = rows("loss_rows", part.loss_rows, whole.loss_rows, 1);
  if (same) same = rows("lse", part_lse.lse, whole_lse.lse, 1);
  if (same) same = rows("lse loss_rows", part_lse.loss_rows, whole_lse.loss_rows, 1);
  for (int64_t row = 0; row < num_rows && same; ++row) {
    const int64_t whole_row = (first + row) * num_columns;
    same = SameSlice("softmax_out", part.softmax_out, row * num_keys, whole.softmax_out, whole_row,
                     num_keys);
    for (int64_t j = num_keys; j < num_columns && same; ++j) {
      if (whole.softmax_out.Bits(whole_row + j) != 0) {
        same = testing::AssertionFailure() << "a row sees more keys in the whole than in its part";
      }
    }
  }
  return same << "\n  rows from " << first << ", " << num_rows << " of them\n  "
              << ReproduceCommand(spec);
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  Case spec;
  spec.dtype = DType::kBFloat16;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 8;
  spec.head_dim = 24;
  spec.num_rows = {70, 0, 3, 45, 20};
  spec.num_keys = {300, 7, 0, 257, 4};
  spec.row_scale = true;
  spec.wide_grads = true;
  cases.push_back(spec);
  spec.cmp_ratio = 4;
  spec.num_heads = 3;
  spec.num_rows = {90, 5, 18};
  spec.num_keys = {40, 300, 4};
  spec.residual = {1, 3, 2};
  spec.layout_k = Layout::kBsnd;
  spec.spare_rows = 2;
  cases.push_back(spec);
  spec.mask_mode = MaskMode::kNone;
  spec.layout_q = Layout::kBsnd;
  cases.push_back(spec);
  return cases;
}

void ForEachCaseAndIsa(const CheckCase& check) {
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    SCOPED_TRACE(IsaName(isa));
    ForEachCase(Cases(), check);
  }
}

TEST(Sharding, PackedSequencesAreIndependent) {
  ForEachCaseAndIsa([](const Case& spec) {
    const Indexer whole(spec);
    const LseOutputs lse = RunSoftmaxLse(whole);
    const GradOutputs grad = RunKLLossGrad(whole);
    testing::AssertionResult same = testing::AssertionSuccess();
    for (int64_t batch = 0; batch < spec.num_batches() && same; ++batch) {
      const Shard shard(whole, batch, 0, spec.num_rows[batch]);
      const GradOutputs part = RunKLLossGrad(shard.problem);
      same = SameRows(shard, spec, lse, grad, part);
      if (same) {
        same = SameSlice("dk", part.dk, 0, grad.dk, shard.first_key * spec.head_dim,
                         spec.num_keys[batch] * spec.head_dim);
      }
    }
    return same;
  });
}

TEST(Sharding, ContextParallelRowsAreBitwiseTheSame) {
  ForEachCaseAndIsa([](const Case& spec) {
    const Indexer whole(spec);
    const LseOutputs lse = RunSoftmaxLse(whole);
    const GradOutputs grad = RunKLLossGrad(whole);
    testing::AssertionResult same = testing::AssertionSuccess();
    for (int64_t batch = 0; batch < spec.num_batches() && same; ++batch) {
      const int64_t num_rows = spec.num_rows[batch];
      for (int64_t begin = 0; begin < num_rows && same; begin += 13) {
        const Shard shard(whole, batch, begin, std::min<int64_t>(begin + 13, num_rows));
        same = SameRows(shard, spec, lse, grad, RunKLLossGrad(shard.problem));
      }
    }
    return same;
  });
}

TEST(Sharding, KeyGradientsOfShardsAddUp) {
  ForEachCaseAndIsa([](const Case& spec) {
    const Indexer whole(spec);
    const GradOutputs grad = RunKLLossGrad(whole);
    Bounds bounds = BoundKLLossGrad(whole).dk;
    OwnedTensor sum(DType::kFloat64, grad.dk.shape());
    sum.Fill(0.0);
    for (int64_t batch = 0; batch < spec.num_batches(); ++batch) {
      const int64_t num_rows = spec.num_rows[batch];
      for (int64_t begin = 0; begin < num_rows; begin += 13) {
        const Shard shard(whole, batch, begin, std::min<int64_t>(begin + 13, num_rows));
        const OwnedTensor part = RunKLLossGrad(shard.problem).dk;
        const Bounds part_bounds = BoundKLLossGrad(shard.problem).dk;
        for (int64_t i = 0; i < part.size(); ++i) {
          const int64_t at = shard.first_key * spec.head_dim + i;
          sum.Set(at, sum.Get(at) + part.Get(i));
          bounds[at] += part_bounds[i];
        }
      }
    }
    return Near("dk", grad.dk, sum, bounds, spec);
  });
}

}  // namespace
}  // namespace kindling::test
