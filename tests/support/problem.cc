#include "support/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "support/random.h"

namespace kindling::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Every tensor of a case has a stream of its own, so that none depends on another's size.
Random StreamOf(const Case& spec, std::string_view tensor) {
  return Random(ToString(spec) + "/" + std::string(tensor));
}

OwnedTensor Normals(const Case& spec, std::string_view name, DType dtype,
                    std::vector<int64_t> shape, double scale) {
  OwnedTensor tensor(dtype, std::move(shape), spec.spread);
  Random random = StreamOf(spec, name);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.Set(i, scale * random.Normal());
  return tensor;
}

// Puts NaN into slices [begin, end) of `slice_elements` elements each.
void HideSlices(OwnedTensor& tensor, int64_t begin, int64_t end, int64_t slice_elements) {
  for (int64_t i = begin * slice_elements; i < end * slice_elements; ++i) tensor.Set(i, kNan);
}

// Which rows and keys an operator may read.
struct Readable {
  explicit Readable(const Case& spec) : placement(spec), num_visible(placement.num_allocated_rows) {
    for (const RowPlace& place : UsedRows(spec)) num_visible[place.row] = place.num_visible;
  }
  void HideRows(OwnedTensor& tensor, int64_t row_elements) const {
    for (int64_t row = 0; row < placement.num_allocated_rows; ++row) {
      if (num_visible[row] == 0) HideSlices(tensor, row, row + 1, row_elements);
    }
  }
  void HideKeys(OwnedTensor& tensor, int64_t key_elements) const {
    for (const Placement::Batch& batch : placement.batches) {
      const int64_t num_read = batch.num_rows > 0 ? batch.num_keys : 0;
      HideSlices(tensor, batch.key_begin + num_read, batch.key_begin + batch.num_allocated_keys,
                 key_elements);
    }
  }
  void HideColumns(OwnedTensor& p) const {
    for (int64_t row = 0; row < placement.num_allocated_rows; ++row) {
      const int64_t begin = row * placement.num_columns;
      HideSlices(p, begin + num_visible[row], begin + placement.num_columns, 1);
    }
  }

  Placement placement;
  std::vector<int64_t> num_visible;  // per allocated row; 0 where it is unused
};

// Teacher rows that are skewed, have zeros, and do not all sum to 1; some are all zero.
OwnedTensor DrawTeacherRows(const Case& spec, const Readable& readable) {
  const int64_t num_columns = readable.placement.num_columns;
  OwnedTensor p(DType::kFloat32, RowShape(spec, {1, num_columns}), spec.spread);
  Random random = StreamOf(spec, "p");
  std::vector<double> row(num_columns);
  for (int64_t r = 0; r < readable.placement.num_allocated_rows; ++r) {
    double sum = 0.0;
    for (int64_t j = 0; j < num_columns; ++j) {
      const double u = random.Uniform();
      row[j] = random.Below(8) == 0 ? 0.0 : u * u * u;
      if (j < readable.num_visible[r]) sum += row[j];
    }
    const double mass = r % 7 == 3 ? 0.0 : 1.0 + 0.3 * static_cast<double>(r % 3 - 1);
    for (int64_t j = 0; j < num_columns; ++j) {
      p.Set(r * num_columns + j, sum > 0.0 ? row[j] * mass / sum : 0.0);
    }
  }
  return p;
}

bool Intact(const OwnedTensor& before, const OwnedTensor& after) {
  return after.GuardsIntact() && after.SameMemory(before);
}

void ExpectIntact(const Indexer& before, const Indexer& after) {
  EXPECT_TRUE(Intact(before.q, after.q) && Intact(before.k, after.k) && Intact(before.w, after.w) &&
              Intact(before.p, after.p) && Intact(before.lse, after.lse) &&
              Intact(before.row_scale, after.row_scale) && Intact(before.metadata, after.metadata))
      << "an input has changed: " << ReproduceCommand(after.spec);
}

void ExpectOk(const Status& status, const Case& spec) {
  EXPECT_TRUE(status.ok()) << status.message() << "\n" << ReproduceCommand(spec);
}

void ExpectGuarded(std::initializer_list<const OwnedTensor*> outputs, const Case& spec) {
  for (const OwnedTensor* output : outputs) {
    EXPECT_TRUE(output->GuardsIntact()) << "written outside: " << ReproduceCommand(spec);
  }
}

}  // namespace

Indexer::Indexer(const Case& spec, Hidden hidden) : spec(spec), lengths(spec) {
  const int64_t num_heads = spec.num_heads;
  const int64_t width = spec.head_dim;
  const Readable readable(spec);
  q = Normals(spec, "q", spec.dtype, RowShape(spec, {num_heads, width}), 1.0);
  k = Normals(spec, "k", spec.dtype, KeyShape(spec, {1, width}),
              1.0 / std::sqrt(static_cast<double>(width)));
  w = Normals(spec, "w", DType::kFloat32, RowShape(spec, {num_heads}),
              1.5 / std::sqrt(static_cast<double>(num_heads)));
  p = DrawTeacherRows(spec, readable);
  if (spec.row_scale) row_scale = Normals(spec, "row_scale", DType::kFloat32, LseShape(spec), 1.0);
  if (hidden == Hidden::kNan) {
    readable.HideRows(q, num_heads * width);
    readable.HideKeys(k, width);
    readable.HideRows(w, num_heads);
    readable.HideColumns(p);
    if (row_scale.present()) readable.HideRows(row_scale, 1);
  }
  // Every fifth row gets an lse that does not normalise it.
  const OwnedTensor exact = ReferenceSoftmaxLse(*this).lse;
  lse = OwnedTensor(DType::kFloat32, LseShape(spec), spec.spread);
  for (int64_t row = 0; row < lse.size(); ++row) {
    const bool sees_keys = readable.num_visible[row] > 0;
    lse.Set(row, sees_keys ? exact.Get(row) + (row % 5 == 4 ? 0.25 : 0.0)
                           : (hidden == Hidden::kNan ? kNan : 0.5));
  }
}

Indexer Indexer::Widened() const {
  Indexer twin = *this;
  for (OwnedTensor* tensor : {&twin.q, &twin.k, &twin.w, &twin.p, &twin.lse, &twin.row_scale}) {
    *tensor = tensor->ConvertedTo(DType::kFloat64);
  }
  return twin;
}

LseOutputs::LseOutputs(const Indexer& problem, Wanted wanted)
    : lse(problem.wide(), LseShape(problem.spec)) {
  if (wanted.loss_rows) loss_rows = OwnedTensor(problem.wide(), LseShape(problem.spec));
}

GradOutputs::GradOutputs(const Indexer& problem, Wanted wanted) {
  const DType grad = problem.spec.wide_grads ? problem.wide() : problem.q.dtype();
  dq = OwnedTensor(grad, problem.q.shape());
  dk = OwnedTensor(grad, problem.k.shape());
  dw = OwnedTensor(problem.wide(), problem.w.shape());
  if (wanted.softmax_out) softmax_out = OwnedTensor(problem.wide(), problem.p.shape());
  if (wanted.loss_rows) loss_rows = OwnedTensor(problem.wide(), LseShape(problem.spec));
}

SoftmaxLseArgs MakeArgs(const Indexer& problem, LseOutputs& outputs) {
  SoftmaxLseArgs args;
  problem.lengths.Describe(problem.spec, args);
  args.q = problem.q.view();
  args.k = problem.k.view();
  args.w = problem.w.view();
  args.metadata = problem.metadata.view();
  args.lse = outputs.lse.view();
  if (outputs.loss_rows.present()) {
    args.p = problem.p.view();
    args.loss_rows = outputs.loss_rows.view();
  }
  return args;
}

KLLossGradArgs MakeArgs(const Indexer& problem, GradOutputs& outputs) {
  KLLossGradArgs args;
  problem.lengths.Describe(problem.spec, args);
  args.q = problem.q.view();
  args.k = problem.k.view();
  args.w = problem.w.view();
  args.p = problem.p.view();
  args.lse = problem.lse.view();
  args.row_scale = problem.row_scale.view();
  args.metadata = problem.metadata.view();
  args.dq = outputs.dq.view();
  args.dk = outputs.dk.view();
  args.dw = outputs.dw.view();
  args.softmax_out = outputs.softmax_out.view();
  args.loss_rows = outputs.loss_rows.view();
  return args;
}

LseOutputs RunSoftmaxLse(const Indexer& problem, LseOutputs::Wanted wanted,
                         const RunOptions& options) {
  const Indexer before = problem;
  LseOutputs outputs(problem, wanted);
  ExpectOk(SoftmaxLse(MakeArgs(problem, outputs), options), problem.spec);
  ExpectGuarded({&outputs.lse, &outputs.loss_rows}, problem.spec);
  ExpectIntact(before, problem);
  return outputs;
}

GradOutputs RunKLLossGrad(const Indexer& problem, GradOutputs::Wanted wanted,
                          const RunOptions& options) {
  const Indexer before = problem;
  GradOutputs outputs(problem, wanted);
  ExpectOk(KLLossGrad(MakeArgs(problem, outputs), options), problem.spec);
  ExpectGuarded({&outputs.dq, &outputs.dk, &outputs.dw, &outputs.softmax_out, &outputs.loss_rows},
                problem.spec);
  ExpectIntact(before, problem);
  return outputs;
}

LseOutputs ReferenceSoftmaxLse(const Indexer& problem) {
  const Indexer twin = problem.Widened();
  LseOutputs outputs(twin, {});
  ExpectOk(reference::SoftmaxLse(MakeArgs(twin, outputs)), problem.spec);
  return outputs;
}

GradOutputs ReferenceKLLossGrad(const Indexer& problem) {
  const Indexer twin = problem.Widened();
  GradOutputs outputs(twin, {});
  ExpectOk(reference::KLLossGrad(MakeArgs(twin, outputs)), problem.spec);
  return outputs;
}

Teacher::Teacher(const Case& spec, Lse lse_kind, Hidden hidden) : spec(spec), lengths(spec) {
  const int64_t num_heads = spec.num_heads;
  const int64_t width = spec.head_dim;
  const Readable readable(spec);
  softmax_scale = 1.0 / std::sqrt(static_cast<double>(width));
  q = Normals(spec, "q", spec.dtype, RowShape(spec, {num_heads, width}), 1.5);
  k = Normals(spec, "k", spec.dtype, KeyShape(spec, {spec.num_key_heads, width}), 1.0);
  if (lse_kind == Lse::kGiven) {
    // About what a row of that many keys has.
    lse = Normals(spec, "lse", DType::kFloat32, LseShape(spec, {num_heads}), 0.5);
    for (const RowPlace& place : UsedRows(spec)) {
      for (int64_t i = place.row * num_heads; i < (place.row + 1) * num_heads; ++i) {
        lse.Set(i, lse.Get(i) + std::log(static_cast<double>(place.num_visible + 1)));
      }
    }
  }
  if (hidden == Hidden::kFinite) return;
  readable.HideRows(q, num_heads * width);
  readable.HideKeys(k, spec.num_key_heads * width);
  if (lse.present()) readable.HideRows(lse, num_heads);
}

Teacher Teacher::Widened() const {
  Teacher twin = *this;
  for (OwnedTensor* tensor : {&twin.q, &twin.k, &twin.lse}) {
    *tensor = tensor->ConvertedTo(DType::kFloat64);
  }
  return twin;
}

OwnedTensor TeacherOutput(const Teacher& problem) {
  const DType dtype = problem.q.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  return OwnedTensor(dtype, RowShape(problem.spec, {1, Placement(problem.spec).num_columns}));
}

AttentionL1NormArgs MakeArgs(const Teacher& problem, OwnedTensor& p) {
  AttentionL1NormArgs args;
  problem.lengths.Describe(problem.spec, args);
  args.q = problem.q.view();
  args.k = problem.k.view();
  args.lse = problem.lse.view();
  args.metadata = problem.metadata.view();
  args.softmax_scale = problem.softmax_scale;
  args.p = p.view();
  return args;
}

OwnedTensor RunAttentionL1Norm(const Teacher& problem, const RunOptions& options) {
  const Teacher before = problem;
  OwnedTensor p = TeacherOutput(problem);
  ExpectOk(AttentionL1Norm(MakeArgs(problem, p), options), problem.spec);
  ExpectGuarded({&p}, problem.spec);
  EXPECT_TRUE(Intact(before.q, problem.q) && Intact(before.k, problem.k) &&
              Intact(before.lse, problem.lse) && Intact(before.metadata, problem.metadata))
      << "an input has changed: " << ReproduceCommand(problem.spec);
  return p;
}

OwnedTensor ReferenceAttentionL1Norm(const Teacher& problem) {
  const Teacher twin = problem.Widened();
  OwnedTensor p = TeacherOutput(twin);
  ExpectOk(reference::AttentionL1Norm(MakeArgs(twin, p)), problem.spec);
  return p;
}

ScopedIsa::ScopedIsa(Isa isa) : before_(GetIsa()) {
  const Status status = SetIsa(isa);
  EXPECT_TRUE(status.ok()) << status.message();
}

ScopedIsa::~ScopedIsa() {
  const Status status = SetIsa(before_);
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace kindling::test
