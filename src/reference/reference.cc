// The definition of the operators in double precision. Loops follow the order of the formulas in
// kindling/operators.h; nothing is blocked, fused or reordered, and pairs that a mask hides are
// never touched.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/guard.h"
#include "base/row_view.h"
#include "kindling/operators.h"
#include "problem/operator_call.h"

namespace kindling::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// One sequence of a call, with element access by position.
class Rows {
 public:
  Rows(const OperatorCall& call, const Operands& operands, int64_t batch)
      : call_(call), operands_(operands), batch_(batch), sequence_(call.problem.sequence(batch)) {}

  const Sequence& sequence() const { return sequence_; }
  int64_t NumVisibleKeys(int64_t row) const { return call_.problem.NumVisibleKeys(sequence_, row); }

  // Element (row, head, i) of a tensor with the layout of q.
  double& Row(const RowView& view, int64_t row, int64_t head = 0, int64_t i = 0) const {
    return Element(view, view.RowOffset(batch_, sequence_.storage_row_begin, row), head, i);
  }
  // Element (key, head, i) of a tensor with the layout of k.
  double& Key(const RowView& view, int64_t key, int64_t head = 0, int64_t i = 0) const {
    return Element(view, view.RowOffset(batch_, sequence_.key_begin, key), head, i);
  }

  // q[row,head,:] . k[key,key_head,:]
  double Score(int64_t row, int64_t head, int64_t key, int64_t key_head = 0) const {
    double sum = 0.0;
    for (int64_t d = 0; d < operands_.head_dim; ++d) {
      sum += Row(operands_.q, row, head, d) * Key(operands_.k, key, key_head, d);
    }
    return sum;
  }

  // S[h][j], all heads and visible keys of a row.
  std::vector<std::vector<double>> Scores(int64_t row) const {
    std::vector<std::vector<double>> scores(operands_.num_heads);
    for (int64_t head = 0; head < operands_.num_heads; ++head) {
      for (int64_t key = 0; key < NumVisibleKeys(row); ++key) {
        scores[head].push_back(Score(row, head, key));
      }
    }
    return scores;
  }

  // I[j] = sum_h w[h] max(S[h][j], 0)
  std::vector<double> Logits(int64_t row, const std::vector<std::vector<double>>& scores) const {
    std::vector<double> logits(NumVisibleKeys(row), 0.0);
    for (int64_t head = 0; head < operands_.num_heads; ++head) {
      for (size_t key = 0; key < logits.size(); ++key) {
        logits[key] += Row(call_.w, row, head) * Relu(scores[head][key]);
      }
    }
    return logits;
  }

  // max(x, 0), and NaN where x is.
  static double Relu(double x) { return x <= 0.0 ? 0.0 : x; }

 private:
  static double& Element(const RowView& view, int64_t row_offset, int64_t head, int64_t i) {
    return *static_cast<double*>(
        view.OutAt(row_offset + head * view.head_stride + i * view.element_stride));
  }

  const OperatorCall& call_;
  const Operands& operands_;
  const int64_t batch_;
  const Sequence sequence_;
};

double LogSumExp(const std::vector<double>& logits) {
  double max = kMinusInfinity;
  for (double logit : logits) max = std::max(max, logit);
  const double shift = max == kMinusInfinity ? 0.0 : max;  // exp(-inf) is 0 whatever the shift
  double sum = 0.0;
  for (double logit : logits) sum += std::exp(logit - shift);
  return shift + std::log(sum);
}

// sum_{p_j > 0} p_j (ln p_j - I[j] + lse); a NaN in p counts as more than nothing.
double LossOfRow(const OperatorCall& call, const Rows& rows, int64_t row,
                 const std::vector<double>& logits, double lse) {
  double loss = 0.0;
  for (size_t key = 0; key < logits.size(); ++key) {
    const double p = rows.Row(call.p, row, 0, static_cast<int64_t>(key));
    if (!(p <= 0.0)) loss += p * (std::log(p) - logits[key] + lse);
  }
  return loss;
}

void FillUnused(const Rows& rows, const RowView& view, int64_t num_heads, int64_t num_elements,
                double value) {
  if (!view) return;
  const Sequence& sequence = rows.sequence();
  for (int64_t row = sequence.num_rows; row < sequence.num_allocated_rows; ++row) {
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t i = 0; i < num_elements; ++i) rows.Row(view, row, head, i) = value;
    }
  }
}

void DoSoftmaxLse(const OperatorCall& call) {
  for (int64_t batch = 0; batch < call.problem.num_batches(); ++batch) {
    const Rows rows(call, call.indexer, batch);
    FillUnused(rows, call.lse_out, 1, 1, kMinusInfinity);
    FillUnused(rows, call.loss_rows, 1, 1, 0.0);
    for (int64_t row = 0; row < rows.sequence().num_rows; ++row) {
      const bool sees_keys = rows.NumVisibleKeys(row) > 0;
      const std::vector<double> logits = rows.Logits(row, rows.Scores(row));
      const double lse = sees_keys ? LogSumExp(logits) : kMinusInfinity;
      rows.Row(call.lse_out, row) = lse;
      if (call.loss_rows) {
        rows.Row(call.loss_rows, row) = sees_keys ? LossOfRow(call, rows, row, logits, lse) : 0.0;
      }
    }
  }
}

void DoKLLossGrad(const OperatorCall& call) {
  const int64_t num_heads = call.indexer.num_heads;
  const int64_t width = call.indexer.head_dim;
  for (int64_t batch = 0; batch < call.problem.num_batches(); ++batch) {
    const Rows rows(call, call.indexer, batch);
    FillUnused(rows, call.dq, num_heads, width, 0.0);
    FillUnused(rows, call.dw, num_heads, 1, 0.0);
    FillUnused(rows, call.softmax_out, 1, call.row_stride_p, 0.0);
    FillUnused(rows, call.loss_rows, 1, 1, 0.0);
    for (int64_t key = 0; key < rows.sequence().num_allocated_keys; ++key) {
      for (int64_t d = 0; d < width; ++d) rows.Key(call.dk, key, 0, d) = 0.0;
    }
    for (int64_t row = 0; row < rows.sequence().num_rows; ++row) {
      for (int64_t head = 0; head < num_heads; ++head) {
        rows.Row(call.dw, row, head) = 0.0;
        for (int64_t d = 0; d < width; ++d) rows.Row(call.dq, row, head, d) = 0.0;
      }
      if (call.softmax_out) {
        for (int64_t key = 0; key < call.row_stride_p; ++key) {
          rows.Row(call.softmax_out, row, 0, key) = 0.0;
        }
      }
      if (call.loss_rows) rows.Row(call.loss_rows, row) = 0.0;
      const int64_t num_keys = rows.NumVisibleKeys(row);
      if (num_keys == 0) continue;

      const std::vector<std::vector<double>> scores = rows.Scores(row);
      const std::vector<double> logits = rows.Logits(row, scores);
      const double lse = rows.Row(call.lse, row);
      const double row_scale = call.row_scale ? rows.Row(call.row_scale, row) : 1.0;
      double teacher_sum = 0.0;
      for (int64_t key = 0; key < num_keys; ++key) teacher_sum += rows.Row(call.p, row, 0, key);
      for (int64_t key = 0; key < num_keys; ++key) {
        const double y = std::exp(logits[key] - lse);
        if (call.softmax_out) rows.Row(call.softmax_out, row, 0, key) = y;
        if (row_scale == 0.0) continue;  // the row is switched off: no 0 * NaN
        const double logits_grad = row_scale * (y * teacher_sum - rows.Row(call.p, row, 0, key));
        for (int64_t head = 0; head < num_heads; ++head) {
          const double score = scores[head][key];
          rows.Row(call.dw, row, head) += logits_grad * Rows::Relu(score);
          const double scores_grad = score > 0.0 ? logits_grad * rows.Row(call.w, row, head) : 0.0;
          for (int64_t d = 0; d < width; ++d) {
            rows.Row(call.dq, row, head, d) += scores_grad * rows.Key(call.indexer.k, key, 0, d);
            rows.Key(call.dk, key, 0, d) += scores_grad * rows.Row(call.indexer.q, row, head, d);
          }
        }
      }
      if (call.loss_rows) {
        rows.Row(call.loss_rows, row) = LossOfRow(call, rows, row, logits, lse);
      }
    }
  }
}

void DoAttentionL1Norm(const OperatorCall& call, double softmax_scale) {
  const int64_t group = call.attention.num_heads / call.attention.num_key_heads;
  for (int64_t batch = 0; batch < call.problem.num_batches(); ++batch) {
    const Rows rows(call, call.attention, batch);
    FillUnused(rows, call.p_out, 1, call.row_stride_p, 0.0);
    for (int64_t row = 0; row < rows.sequence().num_rows; ++row) {
      for (int64_t key = 0; key < call.row_stride_p; ++key) {
        rows.Row(call.p_out, row, 0, key) = 0.0;
      }
      for (int64_t head = 0; head < call.attention.num_heads; ++head) {
        std::vector<double> logits;
        for (int64_t key = 0; key < rows.NumVisibleKeys(row); ++key) {
          logits.push_back(softmax_scale * rows.Score(row, head, key, head / group));
        }
        if (logits.empty()) continue;
        const double lse = call.lse ? rows.Row(call.lse, row, head) : LogSumExp(logits);
        for (size_t key = 0; key < logits.size(); ++key) {
          rows.Row(call.p_out, row, 0, static_cast<int64_t>(key)) += std::exp(logits[key] - lse);
        }
      }
      for (int64_t key = 0; key < rows.NumVisibleKeys(row); ++key) {
        rows.Row(call.p_out, row, 0, key) /= static_cast<double>(call.attention.num_heads);
      }
    }
  }
}

}  // namespace

Status SoftmaxLse(const SoftmaxLseArgs& args) {
  return GuardMemory([&]() -> Status {
    const Result<OperatorCall> call = CheckSoftmaxLse(args, Precision::kDouble);
    if (call.ok()) DoSoftmaxLse(call.value());
    return call.status();
  });
}

Status KLLossGrad(const KLLossGradArgs& args) {
  return GuardMemory([&]() -> Status {
    const Result<OperatorCall> call = CheckKLLossGrad(args, Precision::kDouble);
    if (call.ok()) DoKLLossGrad(call.value());
    return call.status();
  });
}

Status AttentionL1Norm(const AttentionL1NormArgs& args) {
  return GuardMemory([&]() -> Status {
    const Result<OperatorCall> call = CheckAttentionL1Norm(args, Precision::kDouble);
    if (call.ok()) DoAttentionL1Norm(call.value(), args.softmax_scale);
    return call.status();
  });
}

}  // namespace kindling::reference
