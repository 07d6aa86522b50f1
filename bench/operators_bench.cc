// The floating-point operators, and the rate of the tile functions alone to hold them against.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "kernels/kernels.h"
#include "kindling/kindling.h"

namespace kindling {
namespace {

struct Shape {
  int64_t num_tokens = 0;  // T = S, one sequence
  int64_t num_heads = 0;
  int64_t head_dim = 128;
  bool causal = false;
  DType dtype = DType::kFloat32;

  // Visible (row, key) pairs.
  double NumPairs() const {
    const auto n = static_cast<double>(num_tokens);
    return causal ? n * (n + 1) / 2 : n * n;
  }
};

// One problem with its outputs, in fp32 or a 16-bit type, or all in fp64 for the reference.
class BenchProblem {
 public:
  BenchProblem(const Shape& shape, bool reference) : shape_(shape), wide_(reference) {
    std::mt19937 generator(7);
    const int64_t t = shape.num_tokens;
    const int64_t h = shape.num_heads;
    const int64_t d = shape.head_dim;
    q_ = Input(generator, {1, t, h, d}, 1.0 / std::sqrt(static_cast<double>(d)), true);
    k_ = Input(generator, {1, t, 1, d}, 1.0, true);
    w_ = Input(generator, {1, t, h}, 1.0 / std::sqrt(static_cast<double>(h)), false);
    p_ = Input(generator, {1, t, 1, t}, 1.0 / static_cast<double>(t), false);
    for (double& x : p_.values) x = std::fabs(x);
    Finish(p_);
    lse_ = Output({1, 1, t}, false);
    loss_rows_ = Output({1, 1, t}, false);
    dq_ = Output({1, t, h, d}, true);
    dk_ = Output({1, t, 1, d}, true);
    dw_ = Output({1, t, h}, false);
    softmax_out_ = Output({1, t, 1, t}, false);
  }

  SoftmaxLseArgs LseArgs() {
    SoftmaxLseArgs args;
    args.mask_mode = shape_.causal ? 3 : 0;
    args.q = q_.view;
    args.k = k_.view;
    args.w = w_.view;
    args.lse = lse_.view;
    return args;
  }
  KLLossGradArgs GradArgs() {
    KLLossGradArgs args;
    args.mask_mode = shape_.causal ? 3 : 0;
    args.q = q_.view;
    args.k = k_.view;
    args.w = w_.view;
    args.p = p_.view;
    args.lse = lse_.view;
    args.dq = dq_.view;
    args.dk = dk_.view;
    args.dw = dw_.view;
    args.softmax_out = softmax_out_.view;
    args.loss_rows = loss_rows_.view;
    return args;
  }
  AttentionL1NormArgs TeacherArgs() {
    AttentionL1NormArgs args;
    args.mask_mode = shape_.causal ? 3 : 0;
    args.q = q_.view;
    args.k = k_.view;
    args.p = softmax_out_.view;
    return args;
  }

  // Outputs as double, one after the other: lse, then gradients, then softmax_out.
  std::vector<double> Results() const {
    std::vector<double> all;
    for (const Array* array : {&lse_, &dq_, &dk_, &dw_, &softmax_out_}) {
      for (int64_t i = 0; i < array->size; ++i) all.push_back(At(*array, i));
    }
    return all;
  }

 private:
  struct Array {
    std::vector<double> values;  // inputs only
    std::vector<std::byte> bytes;
    int64_t size = 0;
    Tensor view;
  };

  DType TypeOf(bool low) const {
    if (wide_) return DType::kFloat64;
    return low ? shape_.dtype : DType::kFloat32;
  }

  Array Output(std::initializer_list<int64_t> extents, bool low) const {
    Array array;
    array.size = 1;
    for (int64_t extent : extents) array.size *= extent;
    array.bytes.resize(array.size * 8);
    array.view = Tensor(array.bytes.data(), TypeOf(low), extents);
    return array;
  }

  Array Input(std::mt19937& generator, std::initializer_list<int64_t> extents, double scale,
              bool low) {
    Array array = Output(extents, low);
    std::normal_distribution<double> normal(0.0, scale);
    array.values.resize(array.size);
    for (double& x : array.values) x = Rounded(normal(generator), low);
    Finish(array);
    return array;
  }

  // What the low-precision problem and the reference both hold.
  double Rounded(double x, bool low) const {
    const auto value = static_cast<float>(x);
    if (low && shape_.dtype == DType::kBFloat16) return Fp32FromBf16(Bf16FromFp32(value));
    if (low && shape_.dtype == DType::kFloat16) return Fp32FromFp16(Fp16FromFp32(value));
    return value;
  }

  void Finish(Array& array) const {
    for (int64_t i = 0; i < array.size; ++i) {
      const double x = array.values[i];
      switch (array.view.dtype) {
        case DType::kFloat64:
          reinterpret_cast<double*>(array.bytes.data())[i] = x;
          break;
        case DType::kBFloat16:
          reinterpret_cast<uint16_t*>(array.bytes.data())[i] = Bf16FromFp32(static_cast<float>(x));
          break;
        case DType::kFloat16:
          reinterpret_cast<uint16_t*>(array.bytes.data())[i] = Fp16FromFp32(static_cast<float>(x));
          break;
        default:
          reinterpret_cast<float*>(array.bytes.data())[i] = static_cast<float>(x);
      }
    }
  }

  static double At(const Array& array, int64_t i) {
    switch (array.view.dtype) {
      case DType::kFloat64:
        return reinterpret_cast<const double*>(array.bytes.data())[i];
      case DType::kBFloat16:
        return Fp32FromBf16(reinterpret_cast<const uint16_t*>(array.bytes.data())[i]);
      case DType::kFloat16:
        return Fp32FromFp16(reinterpret_cast<const uint16_t*>(array.bytes.data())[i]);
      default:
        return reinterpret_cast<const float*>(array.bytes.data())[i];
    }
  }

  Shape shape_;
  bool wide_;
  Array q_, k_, w_, p_, lse_, loss_rows_, dq_, dk_, dw_, softmax_out_;
};

// Runs lse and gradients of a short problem of this kind both ways. Returns whether they agree.
bool AnswersAgree(Shape shape) {
  shape.num_tokens = 70;
  BenchProblem fast(shape, false);
  BenchProblem exact(shape, true);
  if (!SoftmaxLse(fast.LseArgs()).ok() || !KLLossGrad(fast.GradArgs()).ok()) return false;
  if (!reference::SoftmaxLse(exact.LseArgs()).ok() ||
      !reference::KLLossGrad(exact.GradArgs()).ok()) {
    return false;
  }
  const std::vector<double> got = fast.Results();
  const std::vector<double> expected = exact.Results();
  double error = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return std::sqrt(error) <= (shape.dtype == DType::kFloat32 ? 3e-6 : 3e-3) * std::sqrt(norm);
}

enum class Operator { kLse, kGrad, kTeacher };

void RunOperator(benchmark::State& state, Operator op, const Shape& shape, int64_t num_threads) {
  if (!AnswersAgree(shape)) {
    state.SkipWithError("differs from the reference");
    return;
  }
  BenchProblem problem(shape, false);
  RunOptions options;
  options.num_threads = num_threads;
  if (!SoftmaxLse(problem.LseArgs(), options).ok()) state.SkipWithError("softmax_lse failed");
  for (auto _ : state) {
    const Status status = op == Operator::kLse    ? SoftmaxLse(problem.LseArgs(), options)
                          : op == Operator::kGrad ? KLLossGrad(problem.GradArgs(), options)
                                                  : AttentionL1Norm(problem.TeacherArgs(), options);
    if (!status.ok()) {
      state.SkipWithError(status.message().c_str());
      return;
    }
  }
  // Products: one for lse, three for gradients, two for a teacher that finds its own lse.
  const double products = op == Operator::kLse ? 1 : op == Operator::kGrad ? 3 : 2;
  state.counters["FLOP/s"] = benchmark::Counter(
      2.0 * products * shape.NumPairs() * static_cast<double>(shape.num_heads * shape.head_dim),
      benchmark::Counter::kIsIterationInvariantRate);
}

// The product of one block of pairs with one chunk of keys, all in L2: what tiles reach at most.
void RunTile(benchmark::State& state) {
  const KernelTable& kernels = CurrentKernels();
  constexpr int64_t kPairs = 256;
  constexpr int64_t kWidth = 128;
  std::vector<float> queries(kPairs * kWidth, 0.5f);
  std::vector<float> keys(kKeysPerChunk * kWidth, 0.25f);
  std::vector<float> scores(kPairs * kScoreStride);
  Product product;
  product.a = queries.data();
  product.a_row_stride = kWidth;
  product.a_depth_stride = 1;
  product.b = keys.data();
  product.b_panel_stride = kWidth * kernels.panel_width;
  product.c = scores.data();
  product.c_row_stride = kScoreStride;
  product.num_rows = kPairs;
  product.num_columns = kKeysPerChunk;
  product.depth = kWidth;
  for (auto _ : state) {
    kernels.multiply(product);
    benchmark::ClobberMemory();
  }
  if (scores[0] != 0.125f * kWidth) state.SkipWithError("wrong product");
  state.counters["FLOP/s"] = benchmark::Counter(2.0 * kPairs * kKeysPerChunk * kWidth,
                                                benchmark::Counter::kIsIterationInvariantRate);
}

std::string Name(Operator op, const Shape& shape, int64_t num_threads) {
  const char* ops[] = {"lse", "grad", "teacher"};
  const char* dtype = shape.dtype == DType::kFloat32   ? "fp32"
                      : shape.dtype == DType::kFloat16 ? "fp16"
                                                       : "bf16";
  return std::string(ops[static_cast<int>(op)]) + "/" + dtype +
         (shape.causal ? "/causal" : "/full") + "/tokens:" + std::to_string(shape.num_tokens) +
         "/heads:" + std::to_string(shape.num_heads) + "/threads:" + std::to_string(num_threads);
}

}  // namespace

void RegisterOperatorBenchmarks() {
  const auto add = [](Operator op, const Shape& shape, int64_t num_threads) {
    benchmark::RegisterBenchmark(
        Name(op, shape, num_threads).c_str(),
        [=](benchmark::State& state) { RunOperator(state, op, shape, num_threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  };
  benchmark::RegisterBenchmark("tile", RunTile);
  const int64_t all_threads = std::max<int64_t>(2, GetNumThreads());
  for (int64_t num_heads : {8, 64}) {
    for (bool causal : {false, true}) {
      for (int64_t num_threads : {int64_t{1}, all_threads}) {
        for (Operator op : {Operator::kLse, Operator::kGrad, Operator::kTeacher}) {
          add(op, Shape{1024, num_heads, 128, causal, DType::kFloat32}, num_threads);
        }
      }
    }
  }
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    add(Operator::kGrad, Shape{1024, 8, 128, true, dtype}, 1);
  }
  benchmark::RegisterBenchmark("tile/again", RunTile);
}

}  // namespace kindling
