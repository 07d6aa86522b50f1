#include "bench/check.h"

#include <cmath>
#include <vector>

namespace kindling::bench {
namespace {

using test::Operator;
using test::RowPlace;

// The 2-norms behind one relative error.
struct Norm {
  double error = 0.0;
  double exact = 0.0;

  void Add(double got, double want) {
    error += (got - want) * (got - want);
    exact += want * want;
  }
  double Relative() const { return error == 0.0 ? 0.0 : std::sqrt(error / exact); }
};

struct Norms {
  Norm softmax_out, loss_rows, dq, dk, dw, p;
  double lse = 0.0;
};

// Elements [begin, begin + count) of a tensor in double.
std::vector<double> Slice(const BenchTensor& tensor, int64_t begin, int64_t count) {
  std::vector<double> out(count);
  for (int64_t i = 0; i < count; ++i) out[i] = tensor.Get(begin + i);
  return out;
}

Tensor View(std::vector<double>& values, std::initializer_list<int64_t> extents) {
  return Tensor(values.data(), DType::kFloat64, extents);
}

int64_t NumColumns(const BenchProblem& problem) {
  return test::Placement(problem.spec.spec).num_columns;
}

// One row and the keys that it sees, as a problem without a mask.
Status CheckStudentRow(const BenchProblem& problem, const RowPlace& row, Norms& norms) {
  const int64_t heads = problem.spec.spec.num_heads;
  const int64_t width = problem.spec.spec.head_dim;
  const int64_t n = row.num_visible;
  std::vector<double> q = Slice(problem.q, row.row * heads * width, heads * width);
  std::vector<double> k = Slice(problem.k, row.key_begin * width, n * width);
  std::vector<double> w = Slice(problem.w, row.row * heads, heads);
  std::vector<double> lse(1);
  SoftmaxLseArgs forward;
  forward.q = View(q, {1, 1, heads, width});
  forward.k = View(k, {1, n, 1, width});
  forward.w = View(w, {1, 1, heads});
  forward.lse = View(lse, {1, 1, 1});
  Status status = reference::SoftmaxLse(forward);
  if (!status.ok()) return status;
  const double lse_error = std::fabs(problem.out.Get(row.row) - lse[0]);
  if (!(lse_error <= norms.lse)) norms.lse = lse_error;  // a NaN stays
  if (problem.spec.op == Operator::kLse) return status;

  const int64_t p_begin = row.row * NumColumns(problem);
  std::vector<double> p = Slice(problem.p, p_begin, n);
  std::vector<double> dq(heads * width), dk(n * width), dw(heads), softmax_out(n), loss(1);
  lse[0] = problem.student_lse().Get(row.row);
  KLLossGradArgs args;
  args.q = forward.q;
  args.k = forward.k;
  args.w = forward.w;
  args.p = View(p, {1, 1, 1, n});
  args.lse = forward.lse;
  args.dq = View(dq, {1, 1, heads, width});
  args.dk = View(dk, {1, n, 1, width});
  args.dw = View(dw, {1, 1, heads});
  args.softmax_out = View(softmax_out, {1, 1, 1, n});
  args.loss_rows = View(loss, {1, 1, 1});
  status = reference::KLLossGrad(args);
  if (!status.ok()) return status;
  for (int64_t i = 0; i < heads * width; ++i) {
    norms.dq.Add(problem.dq.Get(row.row * heads * width + i), dq[i]);
  }
  for (int64_t i = 0; i < heads; ++i) norms.dw.Add(problem.dw.Get(row.row * heads + i), dw[i]);
  if (problem.spec.softmax_out) {
    for (int64_t j = 0; j < n; ++j) {
      norms.softmax_out.Add(problem.softmax_out.Get(p_begin + j), softmax_out[j]);
    }
  }
  if (problem.spec.loss_rows) norms.loss_rows.Add(problem.loss_rows.Get(row.row), loss[0]);
  return status;
}

// One key and the rows that see it. A second key of zeros, which gets no gradient, takes what the
// teacher says of all the others, so that P is what it is.
Status CheckKey(const BenchProblem& problem, const std::vector<RowPlace>& used, int64_t batch,
                int64_t key, Norms& norms) {
  const int64_t heads = problem.spec.spec.num_heads;
  const int64_t width = problem.spec.spec.head_dim;
  const int64_t num_columns = NumColumns(problem);
  std::vector<double> q, w, p, lse;
  int64_t key_row = 0;
  const auto append = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const RowPlace& row : used) {
    if (row.batch != batch || row.num_visible <= key) continue;
    key_row = row.key_begin + key;
    append(q, Slice(problem.q, row.row * heads * width, heads * width));
    append(w, Slice(problem.w, row.row * heads, heads));
    double sum = 0.0;
    for (int64_t j = 0; j < row.num_visible; ++j) sum += problem.p.Get(row.row * num_columns + j);
    const double own = problem.p.Get(row.row * num_columns + key);
    append(p, {own, sum - own});
    lse.push_back(problem.student_lse().Get(row.row));
  }
  const auto t = static_cast<int64_t>(lse.size());
  if (t == 0) return Status();
  std::vector<double> k = Slice(problem.k, key_row * width, width);
  k.resize(2 * width, 0.0);
  std::vector<double> dq(q.size()), dk(2 * width), dw(w.size());
  KLLossGradArgs args;
  args.q = View(q, {1, t, heads, width});
  args.k = View(k, {1, 2, 1, width});
  args.w = View(w, {1, t, heads});
  args.p = View(p, {1, t, 1, 2});
  args.lse = View(lse, {1, 1, t});
  args.dq = View(dq, {1, t, heads, width});
  args.dk = View(dk, {1, 2, 1, width});
  args.dw = View(dw, {1, t, heads});
  const Status status = reference::KLLossGrad(args);
  if (!status.ok()) return status;
  for (int64_t i = 0; i < width; ++i) norms.dk.Add(problem.dk.Get(key_row * width + i), dk[i]);
  return status;
}

Status CheckTeacherRow(const BenchProblem& problem, const RowPlace& row, Norms& norms) {
  const int64_t heads = problem.spec.spec.num_heads;
  const int64_t key_heads = problem.spec.spec.num_key_heads;
  const int64_t width = problem.spec.spec.head_dim;
  const int64_t n = row.num_visible;
  std::vector<double> q = Slice(problem.q, row.row * heads * width, heads * width);
  std::vector<double> k =
      Slice(problem.k, row.key_begin * key_heads * width, n * key_heads * width);
  std::vector<double> p(n), lse;
  AttentionL1NormArgs args;
  args.q = View(q, {1, 1, heads, width});
  args.k = View(k, {1, n, key_heads, width});
  if (problem.spec.teacher_lse) {
    lse = Slice(problem.lse, row.row * heads, heads);
    args.lse = View(lse, {1, 1, 1, heads});
  }
  args.softmax_scale = 1.0 / std::sqrt(static_cast<double>(width));
  args.p = View(p, {1, 1, 1, n});
  const Status status = reference::AttentionL1Norm(args);
  if (!status.ok()) return status;
  const int64_t begin = row.row * NumColumns(problem);
  for (int64_t j = 0; j < n; ++j) norms.p.Add(problem.out.Get(begin + j), p[j]);
  return status;
}

}  // namespace

bool Errors::Acceptable(DType dtype) const {
  const double gradient = dtype == DType::kBFloat16  ? 1e-2
                          : dtype == DType::kFloat16 ? 2.4e-3
                                                     : 1.2e-5;
  // Written so that a NaN is not acceptable.
  return lse <= 5e-6 && softmax_out <= 5e-6 && loss_rows <= 5e-5 && dw <= 1.2e-5 &&
         dq <= gradient && dk <= gradient && p <= 5e-6;
}

Result<Errors> CheckAgainstReference(BenchProblem& problem) {
  const std::vector<RowPlace> used = test::UsedRows(problem.spec.spec);
  Norms norms;
  std::vector<size_t> rows;
  if (!used.empty()) rows = {0, used.size() / 2, used.size() - 1};
  for (const size_t row : rows) {
    if (used[row].num_visible == 0) continue;
    const Status status = problem.spec.op == Operator::kTeacher
                              ? CheckTeacherRow(problem, used[row], norms)
                              : CheckStudentRow(problem, used[row], norms);
    if (!status.ok()) return status;
  }
  if (HasGradients(problem.spec.op) && !used.empty()) {
    const RowPlace& last = used.back();
    for (const int64_t key : {int64_t{0}, last.num_visible / 2}) {
      const Status status = CheckKey(problem, used, last.batch, key, norms);
      if (!status.ok()) return status;
    }
  }
  Errors errors;
  errors.lse = norms.lse;
  errors.softmax_out = norms.softmax_out.Relative();
  errors.loss_rows = norms.loss_rows.Relative();
  errors.dq = norms.dq.Relative();
  errors.dk = norms.dk.Relative();
  errors.dw = norms.dw.Relative();
  errors.p = norms.p.Relative();
  return errors;
}

}  // namespace kindling::bench
