#include "bench/bench_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/float16.h"
#include "support/random.h"

namespace kindling::bench {
namespace {

using test::Operator;

// Prime, so that no stride of a tensor meets the same value all the time.
constexpr uint32_t kNumValues = 8191;

int64_t ElementBytes(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? 2 : 4;
}

std::vector<double> Normals(double scale) {
  test::Random random("bench");
  std::vector<double> values(kNumValues);
  for (double& value : values) value = scale * random.Normal();
  return values;
}

}  // namespace

BenchTensor::BenchTensor(DType dtype, std::vector<int64_t> shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(1) {
  for (const int64_t extent : shape_) size_ *= extent;
  bytes_ = size_ * ElementBytes(dtype);
  data_ = std::make_unique<std::byte[]>(bytes_);
}

Tensor BenchTensor::view() {
  if (data_ == nullptr) return Tensor();
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};
  int64_t stride = 1;
  for (size_t i = shape_.size(); i-- > 0;) {
    shape[i] = shape_[i];
    strides[i] = stride;
    stride *= shape_[i];
  }
  return Tensor(data_.get(), dtype_, static_cast<int32_t>(shape_.size()), shape, strides);
}

double BenchTensor::Get(int64_t index) const {
  const std::byte* at = data_.get() + index * ElementBytes(dtype_);
  if (ElementBytes(dtype_) == 4) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype_ == DType::kBFloat16 ? Fp32FromBf16(bits) : Fp32FromFp16(bits);
}

void BenchTensor::Set(int64_t index, double value) {
  std::byte* at = data_.get() + index * ElementBytes(dtype_);
  const auto narrow = static_cast<float>(value);
  if (ElementBytes(dtype_) == 4) {
    std::memcpy(at, &narrow, sizeof(narrow));
    return;
  }
  const uint16_t bits = dtype_ == DType::kBFloat16 ? Bf16FromFp32(narrow) : Fp16FromFp32(narrow);
  std::memcpy(at, &bits, sizeof(bits));
}

// Rounds the values once and deals them out in an order that a linear congruence gives.
void BenchTensor::FillFrom(const std::vector<double>& values, uint32_t seed) {
  BenchTensor table(dtype_, {kNumValues});
  for (uint32_t i = 0; i < kNumValues; ++i) table.Set(i, values[i]);
  const int64_t element_bytes = ElementBytes(dtype_);
  uint32_t state = seed * 2654435761u + 1;
  for (int64_t i = 0; i < size_; ++i) {
    state = state * 1664525u + 1013904223u;
    const uint32_t choice = (state >> 8) % kNumValues;
    std::memcpy(data_.get() + i * element_bytes, table.data_.get() + choice * element_bytes,
                element_bytes);
  }
}

void BenchTensor::FillNormal(uint32_t seed, double scale) { FillFrom(Normals(scale), seed); }

void BenchTensor::FillPositive(uint32_t seed, double scale) {
  std::vector<double> values = Normals(scale);
  for (double& value : values) value = std::fabs(value);
  FillFrom(values, seed);
}

BenchProblem::BenchProblem(const test::OperatorCase& problem)
    : spec(problem), lengths_(problem.spec) {
  const test::Case& shape = spec.spec;
  const int64_t heads = shape.num_heads;
  const auto width = static_cast<double>(shape.head_dim);
  const int64_t num_columns = test::Placement(shape).num_columns;
  const std::vector<int64_t> q_shape = test::RowShape(shape, {heads, shape.head_dim});
  const std::vector<int64_t> p_shape = test::RowShape(shape, {1, num_columns});
  for (const test::RowPlace& row : test::UsedRows(shape)) num_pairs_ += row.num_visible;
  q = BenchTensor(shape.dtype, q_shape);
  q.FillNormal(1, 1.0);
  if (spec.op == Operator::kTeacher) {
    k = BenchTensor(shape.dtype, test::KeyShape(shape, {shape.num_key_heads, shape.head_dim}));
    k.FillNormal(2, 1.0);
    out = BenchTensor(DType::kFloat32, p_shape);
    if (!spec.teacher_lse) return;
    lse = BenchTensor(DType::kFloat32, test::LseShape(shape, {heads}));
    lse.FillPositive(3, 0.1);
    const double typical = std::log(static_cast<double>(num_columns)) + 0.5;
    for (int64_t i = 0; i < lse.size(); ++i) lse.Set(i, lse.Get(i) + typical);
    return;
  }
  k = BenchTensor(shape.dtype, test::KeyShape(shape, {1, shape.head_dim}));
  k.FillNormal(2, 1.0 / std::sqrt(width));
  w = BenchTensor(DType::kFloat32, test::RowShape(shape, {heads}));
  w.FillNormal(4, 1.0 / std::sqrt(static_cast<double>(heads)));
  const bool needs_p = HasGradients(spec.op) || spec.loss_rows;
  if (needs_p) {
    p = BenchTensor(DType::kFloat32, p_shape);
    p.FillPositive(5, 1.25 / static_cast<double>(num_columns));
  }
  if (spec.loss_rows) loss_rows = BenchTensor(DType::kFloat32, test::LseShape(shape));
  out = BenchTensor(DType::kFloat32, test::LseShape(shape));
  if (spec.op == Operator::kLse) return;
  if (spec.op == Operator::kGrad) {
    lse = BenchTensor(DType::kFloat32, test::LseShape(shape));
    const Status status = SoftmaxLse(LseArgs());
    for (int64_t i = 0; i < lse.size(); ++i) lse.Set(i, status.ok() ? out.Get(i) : NAN);
  }
  dq = BenchTensor(shape.wide_grads ? DType::kFloat32 : shape.dtype, q_shape);
  dk = BenchTensor(shape.wide_grads ? DType::kFloat32 : shape.dtype,
                   test::KeyShape(shape, {1, shape.head_dim}));
  dw = BenchTensor(DType::kFloat32, test::RowShape(shape, {heads}));
  if (spec.softmax_out) softmax_out = BenchTensor(DType::kFloat32, p_shape);
}

SoftmaxLseArgs BenchProblem::LseArgs() {
  SoftmaxLseArgs args;
  lengths_.Describe(spec.spec, args);
  args.q = q.view();
  args.k = k.view();
  args.w = w.view();
  args.lse = out.view();
  if (spec.op != Operator::kGrad && spec.loss_rows) {
    args.p = p.view();
    args.loss_rows = loss_rows.view();
  }
  return args;
}

KLLossGradArgs BenchProblem::GradArgs() {
  KLLossGradArgs args;
  lengths_.Describe(spec.spec, args);
  args.q = q.view();
  args.k = k.view();
  args.w = w.view();
  args.p = p.view();
  args.lse = (spec.op == Operator::kStep ? out : lse).view();
  args.dq = dq.view();
  args.dk = dk.view();
  args.dw = dw.view();
  args.softmax_out = softmax_out.view();
  if (spec.op == Operator::kGrad) args.loss_rows = loss_rows.view();
  return args;
}

AttentionL1NormArgs BenchProblem::TeacherArgs() {
  AttentionL1NormArgs args;
  lengths_.Describe(spec.spec, args);
  args.q = q.view();
  args.k = k.view();
  args.lse = lse.view();
  args.softmax_scale = 1.0 / std::sqrt(static_cast<double>(spec.spec.head_dim));
  args.p = out.view();
  return args;
}

Status BenchProblem::Run(const RunOptions& options) {
  if (spec.op == Operator::kLse) return SoftmaxLse(LseArgs(), options);
  if (spec.op == Operator::kGrad) return KLLossGrad(GradArgs(), options);
  if (spec.op == Operator::kTeacher) return AttentionL1Norm(TeacherArgs(), options);
  const Status status = SoftmaxLse(LseArgs(), options);
  return status.ok() ? KLLossGrad(GradArgs(), options) : status;
}

Result<size_t> BenchProblem::WorkspaceBytes() {
  const int64_t threads = spec.num_threads;
  if (spec.op == Operator::kTeacher) return AttentionL1NormWorkspaceBytes(TeacherArgs(), threads);
  Result<size_t> lse_bytes = SoftmaxLseWorkspaceBytes(LseArgs(), threads);
  if (spec.op == Operator::kLse || !lse_bytes.ok()) return lse_bytes;
  Result<size_t> grad_bytes = KLLossGradWorkspaceBytes(GradArgs(), threads);
  if (spec.op == Operator::kGrad || !grad_bytes.ok()) return grad_bytes;
  return std::max(lse_bytes.value(), grad_bytes.value());
}

double BenchProblem::flops() const {
  const double products = spec.op == Operator::kStep   ? 4.0
                          : spec.op == Operator::kGrad ? 3.0
                          : spec.op == Operator::kLse  ? 1.0
                                                       : num_passes();
  return 2.0 * products * static_cast<double>(num_pairs_) *
         static_cast<double>(spec.spec.num_heads * spec.spec.head_dim);
}

double BenchProblem::exps() const {
  if (spec.op != Operator::kTeacher) return 0.0;
  return num_passes() * static_cast<double>(num_pairs_ * spec.spec.num_heads);
}

double BenchProblem::bytes() const {
  size_t dense = 0;
  for (const BenchTensor* tensor : {&q, &k, &w, &lse, &dq, &dk, &dw, &loss_rows}) {
    dense += tensor->bytes();
  }
  if (spec.op == Operator::kLse) dense += out.bytes();
  double per_pair = 0.0;
  if (p.bytes() > 0) per_pair += 4.0;
  if (softmax_out.bytes() > 0) per_pair += 4.0;
  if (spec.op == Operator::kTeacher) per_pair += 4.0;
  return static_cast<double>(dense) + per_pair * static_cast<double>(num_pairs_);
}

}  // namespace kindling::bench
