#include "support/error_bounds.h"

#include <algorithm>
#include <cmath>

#include "kernels/kernels.h"
#include "ops/launch.h"

namespace kindling::test {
namespace {

constexpr double kUnit = 0x1p-24;
constexpr double kTiny = 0x1p-149;  // smallest fp32 above 0: the error where results underflow
constexpr double kElementary = 4 * kUnit;  // exp and ln, relative: 2 ulp

double Gamma(int64_t num_roundings) {
  const double n = static_cast<double>(num_roundings);
  return n * kUnit / (1.0 - n * kUnit);
}

// Roundings on the way of one term through a sum of products that is formed in units: the product,
// the additions within a unit, and those of the units.
int64_t SumDepth(int64_t num_terms, int64_t unit) {
  return 1 + std::min(num_terms, unit) + (num_terms + unit - 1) / unit;
}

std::vector<double> Values(const OwnedTensor& tensor) {
  std::vector<double> values(tensor.size());
  for (int64_t i = 0; i < tensor.size(); ++i) values[i] = tensor.Get(i);
  return values;
}

// A number and how far the computed one may be from it.
struct Approx {
  double value = 0.0;
  double error = 0.0;

  double most() const { return std::abs(value) + error; }  // bound of the computed magnitude
};

// a . b
Approx Dot(const double* a, const double* b, int64_t count) {
  Approx dot;
  double magnitude = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    const double product = a[i] * b[i];
    dot.value += product;
    magnitude += std::abs(product);
  }
  dot.error = Gamma(count) * magnitude + static_cast<double>(count) * kTiny;
  return dot;
}

Approx Relu(const Approx& x) {
  return {std::max(x.value, 0.0), x.value + x.error <= 0.0 ? 0.0 : x.error};
}

// One rounded operation on operands whose errors are given.
Approx Minus(const Approx& a, const Approx& b) {
  const double value = a.value - b.value;
  const double error = a.error + b.error;
  return {value, error + kUnit * (std::abs(value) + error)};
}

Approx Times(const Approx& a, const Approx& b) {
  const double value = a.value * b.value;
  const double error = std::abs(a.value) * b.error + a.error * b.most();
  return {value, error + kUnit * (std::abs(value) + error) + kTiny};
}

Approx Exp(const Approx& x) {
  const double value = std::exp(x.value);
  const double grown = value * std::expm1(x.error);
  return {value, grown + kElementary * (value + grown) + kTiny};
}

// ln sum exp(x), found chunk by chunk: exp, the sum and its rescaling, then one final rounding.
Approx LogSumExp(const std::vector<Approx>& logits) {
  double max = logits[0].value;
  double min = logits[0].value;
  for (const Approx& x : logits) {
    max = std::max(max, x.value);
    min = std::min(min, x.value);
  }
  double sum = 0.0;
  for (const Approx& x : logits) sum += std::exp(x.value - max);
  const auto count = static_cast<int64_t>(logits.size());
  const int64_t num_chunks = (count + kKeysPerChunk - 1) / kKeysPerChunk;
  double error = Gamma(SumDepth(count, kKeysPerChunk)) +
                 static_cast<double>(num_chunks) * (kElementary + kUnit * (2.0 + max - min));
  for (const Approx& x : logits) {
    const double share = std::exp(x.value - max) / sum;
    error += share * (std::expm1(x.error) + kElementary + kUnit * (max - x.value));
  }
  const double value = max + std::log(sum);
  return {value, error + kUnit * (std::abs(value) + error)};
}

// One row of the indexer: scores of all heads and visible keys, logits.
struct RowOfLogits {
  RowOfLogits(const double* q, const double* k, const double* w, const Case& spec, int64_t num_keys)
      : logits(num_keys), scores(spec.num_heads * num_keys) {
    std::vector<double> magnitude(num_keys);
    for (int64_t head = 0; head < spec.num_heads; ++head) {
      for (int64_t key = 0; key < num_keys; ++key) {
        const Approx score = Dot(q + head * spec.head_dim, k + key * spec.head_dim, spec.head_dim);
        const Approx relu = Relu(score);
        scores[head * num_keys + key] = score;
        logits[key].value += w[head] * relu.value;
        logits[key].error += std::abs(w[head]) * relu.error;
        magnitude[key] += std::abs(w[head]) * relu.most();
      }
    }
    for (int64_t key = 0; key < num_keys; ++key) {
      logits[key].error += Gamma(spec.num_heads + 1) * magnitude[key];
    }
  }

  std::vector<Approx> logits;
  std::vector<Approx> scores;  // [heads][keys]
};

// sum over p > 0 of p (ln p - I + lse), whether lse is added to each term or once to the sum.
double LossError(const double* p, const std::vector<Approx>& logits, const Approx& lse) {
  double error = 0.0;
  double magnitude = 0.0;
  double value = 0.0;
  for (size_t key = 0; key < logits.size(); ++key) {
    if (p[key] <= 0.0) continue;
    const Approx& logit = logits[key];
    const double log_p = std::log(p[key]);
    const double parts = std::abs(log_p) + logit.most() + lse.most();
    error += p[key] * (kElementary * std::abs(log_p) + logit.error + lse.error + 3 * kUnit * parts);
    // The kernels take a subnormal p for the smallest normal number under the logarithm.
    if (p[key] < 0x1p-126) error += p[key] * std::log(0x1p-126 / p[key]);
    magnitude += p[key] * parts;
    value += p[key] * (log_p - logit.value + lse.value);
  }
  const auto count = static_cast<int64_t>(logits.size());
  error += Gamma(SumDepth(count, kKeysPerChunk) + 2) * magnitude + kTiny;
  return error + kUnit * (std::abs(value) + error);
}

struct Inputs {
  explicit Inputs(const Indexer& problem)
      : spec(problem.spec),
        placement(problem.spec),
        q(Values(problem.q)),
        k(Values(problem.k)),
        w(Values(problem.w)),
        p(Values(problem.p)),
        lse(Values(problem.lse)),
        row_scale(Values(problem.row_scale)) {}

  RowOfLogits Row(const RowPlace& place) const {
    return RowOfLogits(&q[place.row * spec.num_heads * spec.head_dim],
                       &k[place.key_begin * spec.head_dim], &w[place.row * spec.num_heads], spec,
                       place.num_visible);
  }
  const double* TeacherRow(const RowPlace& place) const {
    return &p[place.row * placement.num_columns];
  }

  const Case& spec;
  Placement placement;
  std::vector<double> q, k, w, p, lse, row_scale;
};

// Sums of products in double, their errors on the way in and their magnitude.
struct ErrorOfSums {
  explicit ErrorOfSums(int64_t size) : value(size), error(size), magnitude(size) {}
  void Add(int64_t at, const Approx& a, double b, double b_error) {
    value[at] += a.value * b;
    error[at] += a.error * std::abs(b) + a.most() * b_error;
    magnitude[at] += a.most() * (std::abs(b) + b_error);
  }
  // Once all terms are in: `num_roundings` per term, then the output's own.
  void Finish(int64_t at, int64_t num_roundings, DType dtype) {
    error[at] += Gamma(num_roundings) * magnitude[at] + static_cast<double>(num_roundings) * kTiny;
    error[at] += HalfUlp(dtype, std::abs(value[at]) + error[at]);
  }

  std::vector<double> value, error, magnitude;
};

}  // namespace

double HalfUlp(DType dtype, double value) {
  struct Format {
    int digits;
    int min_exponent;
  };
  const Format format = dtype == DType::kBFloat16  ? Format{8, -126}
                        : dtype == DType::kFloat16 ? Format{11, -14}
                                                   : Format{24, -126};
  const int exponent = value == 0.0 ? format.min_exponent : std::ilogb(value);
  return std::ldexp(1.0, std::max(exponent, format.min_exponent) - format.digits);
}

LseBounds BoundSoftmaxLse(const Indexer& problem) {
  const Inputs inputs(problem);
  LseBounds bounds;
  bounds.lse.resize(inputs.placement.num_allocated_rows);
  bounds.loss_rows.resize(inputs.placement.num_allocated_rows);
  for (const RowPlace& place : UsedRows(problem.spec)) {
    if (place.num_visible == 0) continue;
    const RowOfLogits row = inputs.Row(place);
    const Approx lse = LogSumExp(row.logits);
    bounds.lse[place.row] = lse.error;
    bounds.loss_rows[place.row] = LossError(inputs.TeacherRow(place), row.logits, lse);
  }
  return bounds;
}

GradBounds BoundKLLossGrad(const Indexer& problem) {
  const Inputs inputs(problem);
  const Case& spec = problem.spec;
  const Placement& placement = inputs.placement;
  const int64_t num_heads = spec.num_heads;
  const int64_t width = spec.head_dim;
  const DType grad = spec.wide_grads ? DType::kFloat32 : spec.dtype;
  ErrorOfSums dq(placement.num_allocated_rows * num_heads * width);
  ErrorOfSums dk(placement.num_allocated_keys * width);
  ErrorOfSums dw(placement.num_allocated_rows * num_heads);
  // Relative, of dS as an operand of products.
  const double operand_rounding =
      CurrentKernels(spec.dtype).values_per_word == 2 ? HalfUlp(DType::kBFloat16, 1.0) : 0.0;
  GradBounds bounds;
  bounds.softmax_out.resize(placement.num_allocated_rows * placement.num_columns);
  bounds.loss_rows.resize(placement.num_allocated_rows);

  for (const RowPlace& place : UsedRows(spec)) {
    const int64_t num_keys = place.num_visible;
    if (num_keys == 0) continue;
    const RowOfLogits row = inputs.Row(place);
    const double* p = inputs.TeacherRow(place);
    const Approx lse{inputs.lse[place.row], 0.0};
    const Approx row_scale{spec.row_scale ? inputs.row_scale[place.row] : 1.0, 0.0};
    bounds.loss_rows[place.row] = LossError(p, row.logits, lse);
    Approx teacher_sum;
    for (int64_t key = 0; key < num_keys; ++key) teacher_sum.value += p[key];
    teacher_sum.error = Gamma(SumDepth(num_keys, kKeysPerChunk)) * teacher_sum.value;

    const int64_t chain = SumDepth(num_keys, kKeysPerChunk);
    for (int64_t key = 0; key < num_keys; ++key) {
      const Approx y = Exp(Minus(row.logits[key], lse));
      bounds.softmax_out[place.row * placement.num_columns + key] = y.error;
      const Approx logits_grad =
          Times(row_scale, Minus(Times(y, teacher_sum), Approx{p[key], 0.0}));
      for (int64_t head = 0; head < num_heads; ++head) {
        const int64_t pair = place.row * num_heads + head;
        const Approx score = row.scores[head * num_keys + key];
        const Approx relu = Relu(score);
        dw.Add(pair, logits_grad, relu.value, relu.error);
        Approx scores_grad = Times(logits_grad, Approx{inputs.w[pair], 0.0});
        if (std::abs(score.value) <= score.error) scores_grad.error = scores_grad.most();
        if (score.value <= 0.0) scores_grad.value = 0.0;
        scores_grad.error += operand_rounding * scores_grad.most();
        if (score.value < -score.error) scores_grad.error = 0.0;
        for (int64_t d = 0; d < width; ++d) {
          const int64_t query_at = pair * width + d;
          const int64_t key_at = (place.key_begin + key) * width + d;
          dq.Add(query_at, scores_grad, inputs.k[key_at], 0.0);
          dk.Add(key_at, scores_grad, inputs.q[query_at], 0.0);
        }
      }
    }
    for (int64_t pair = place.row * num_heads; pair < (place.row + 1) * num_heads; ++pair) {
      dw.Finish(pair, chain, DType::kFloat32);
      for (int64_t d = 0; d < width; ++d) dq.Finish(pair * width + d, chain, grad);
    }
  }
  for (const Placement::Batch& batch : placement.batches) {
    if (batch.num_rows == 0) continue;
    const int64_t rows_per_block = std::max<int64_t>(1, kPairsPerBlock / num_heads);
    const int64_t chain = SumDepth(batch.num_rows * num_heads, rows_per_block * num_heads);
    const int64_t end = (batch.key_begin + batch.num_keys) * width;
    for (int64_t at = batch.key_begin * width; at < end; ++at) dk.Finish(at, chain, grad);
  }
  bounds.dq = std::move(dq.error);
  bounds.dk = std::move(dk.error);
  bounds.dw = std::move(dw.error);
  return bounds;
}

Bounds BoundAttentionL1Norm(const Teacher& problem) {
  const Case& spec = problem.spec;
  const Placement placement(spec);
  const std::vector<double> q = Values(problem.q);
  const std::vector<double> k = Values(problem.k);
  const std::vector<double> given = Values(problem.lse);
  const Approx scale{problem.softmax_scale, kUnit * std::abs(problem.softmax_scale)};
  const auto num_heads = static_cast<double>(spec.num_heads);
  Bounds bounds(placement.num_allocated_rows * placement.num_columns);
  for (const RowPlace& place : UsedRows(spec)) {
    if (place.num_visible == 0) continue;
    std::vector<Approx> sums(place.num_visible);
    for (int64_t head = 0; head < spec.num_heads; ++head) {
      const int64_t pair = place.row * spec.num_heads + head;
      const int64_t key_head = head * spec.num_key_heads / spec.num_heads;
      std::vector<Approx> logits;
      for (int64_t key = 0; key < place.num_visible; ++key) {
        const int64_t key_row = (place.key_begin + key) * spec.num_key_heads + key_head;
        logits.push_back(Times(
            scale, Dot(&q[pair * spec.head_dim], &k[key_row * spec.head_dim], spec.head_dim)));
      }
      const Approx lse = problem.lse.present() ? Approx{given[pair], 0.0} : LogSumExp(logits);
      for (int64_t key = 0; key < place.num_visible; ++key) {
        const Approx value = Exp(Minus(logits[key], lse));
        sums[key].value += value.value;
        sums[key].error += value.error;
      }
    }
    for (int64_t key = 0; key < place.num_visible; ++key) {
      const Approx& sum = sums[key];
      const double error = sum.error + Gamma(spec.num_heads + 1) * sum.most() + kTiny;
      bounds[place.row * placement.num_columns + key] = error / num_heads + kTiny;
    }
  }
  return bounds;
}

}  // namespace kindling::test
