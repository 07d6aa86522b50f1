// One problem of a case file with its tensors, in the dtypes that the operators take.
#ifndef KINDLING_BENCH_BENCH_PROBLEM_H_
#define KINDLING_BENCH_BENCH_PROBLEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kindling/operators.h"
#include "support/case_file.h"

namespace kindling::bench {

// A dense tensor. Values are finite, of a fixed pseudorandom sequence.
class BenchTensor {
 public:
  BenchTensor() = default;
  BenchTensor(DType dtype, std::vector<int64_t> shape);
  // Normal values times `scale`, or their absolute values.
  void FillNormal(uint32_t seed, double scale);
  void FillPositive(uint32_t seed, double scale);

  double Get(int64_t index) const;
  void Set(int64_t index, double value);
  int64_t size() const { return size_; }
  size_t bytes() const { return bytes_; }
  Tensor view();

 private:
  void FillFrom(const std::vector<double>& values, uint32_t seed);

  DType dtype_ = DType::kOther;
  std::vector<int64_t> shape_;
  int64_t size_ = 0;
  size_t bytes_ = 0;
  std::unique_ptr<std::byte[]> data_;
};

// Not to be moved: the arguments point here.
class BenchProblem {
 public:
  explicit BenchProblem(const test::OperatorCase& spec);
  BenchProblem(const BenchProblem&) = delete;
  BenchProblem& operator=(const BenchProblem&) = delete;

  // Runs the operator once.
  Status Run(const RunOptions& options);
  Result<size_t> WorkspaceBytes();

  int64_t num_pairs() const { return num_pairs_; }  // visible (row, key) pairs
  double flops() const;                             // of all products
  double exps() const;                              // one per pair and head: of the teacher
  double bytes() const;  // of inputs that are read and outputs, each once, visible parts only

  // The student's, which the gradients were computed with.
  const BenchTensor& student_lse() const { return spec.op == test::Operator::kStep ? out : lse; }

  const test::OperatorCase spec;
  BenchTensor q, k, w, p, lse;                     // p and lse: inputs of grad; lse: of the teacher
  BenchTensor dq, dk, dw, softmax_out, loss_rows;  // outputs
  BenchTensor out;                                 // lse of SoftmaxLse, p of AttentionL1Norm

 private:
  SoftmaxLseArgs LseArgs();
  KLLossGradArgs GradArgs();
  AttentionL1NormArgs TeacherArgs();
  // Of the teacher over the scores: its own log-sum-exp is one.
  double num_passes() const { return spec.teacher_lse ? 1.0 : 2.0; }

  test::LengthTensors lengths_;
  int64_t num_pairs_ = 0;
};

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_BENCH_PROBLEM_H_
