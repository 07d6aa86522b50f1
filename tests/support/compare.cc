#include "support/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>

namespace kindling::test {
namespace {

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

std::string HexBits(uint64_t bits) {
  char text[40];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(bits));
  return text;
}

testing::AssertionResult ShapesDiffer(std::string_view name, const Case& spec) {
  return testing::AssertionFailure()
         << name << ": the sizes of result, expectation and bounds differ\n  "
         << ReproduceCommand(spec);
}

// How many bounds `got` is away from `want`: <= 1 is fine, infinite where nothing can make it fine.
double Excess(double got, double want, double bound) {
  if (got == want || (std::isnan(got) && std::isnan(want))) return 0.0;
  const double error = std::abs(got - want);
  if (!std::isfinite(error) || !(bound > 0.0)) return std::numeric_limits<double>::infinity();
  return error / bound;
}

}  // namespace

testing::AssertionResult Near(std::string_view name, const OwnedTensor& got,
                              const OwnedTensor& want, const Bounds& bounds, const Case& spec) {
  if (got.shape() != want.shape() || bounds.size() != static_cast<size_t>(got.size())) {
    return ShapesDiffer(name, spec);
  }
  int64_t num_wrong = 0;
  int64_t worst = 0;
  double most = 0.0;
  for (int64_t i = 0; i < got.size(); ++i) {
    const double excess = Excess(got.Get(i), want.Get(i), bounds[i]);
    if (!(excess <= 1.0)) ++num_wrong;
    if (excess > most) {
      most = excess;
      worst = i;
    }
  }
  if (num_wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << name << got.IndexString(worst) << ": got " << Number(got.Get(worst)) << ", expected "
         << Number(want.Get(worst)) << " within " << Number(bounds[worst]) << " (off by "
         << Number(got.Get(worst) - want.Get(worst)) << "); the worst of " << num_wrong
         << " wrong elements among " << got.size() << "\n  " << ReproduceCommand(spec);
}

testing::AssertionResult SameBits(std::string_view name, const OwnedTensor& got,
                                  const OwnedTensor& want, const Case& spec) {
  if (!got.present() || !want.present()) return testing::AssertionSuccess();
  if (got.shape() != want.shape() || got.dtype() != want.dtype()) return ShapesDiffer(name, spec);
  int64_t num_wrong = 0;
  int64_t first = 0;
  for (int64_t i = got.size() - 1; i >= 0; --i) {
    if (got.Bits(i) == want.Bits(i)) continue;
    ++num_wrong;
    first = i;
  }
  if (num_wrong == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << name << got.IndexString(first) << ": got the bits " << HexBits(got.Bits(first)) << " ("
         << Number(got.Get(first)) << "), expected " << HexBits(want.Bits(first)) << " ("
         << Number(want.Get(first)) << "); the first of " << num_wrong << " different elements of "
         << got.size() << "\n  " << ReproduceCommand(spec);
}

testing::AssertionResult SameBits(const LseOutputs& got, const LseOutputs& want, const Case& spec) {
  const testing::AssertionResult lse = SameBits("lse", got.lse, want.lse, spec);
  return lse ? SameBits("loss_rows", got.loss_rows, want.loss_rows, spec) : lse;
}

testing::AssertionResult SameBits(const GradOutputs& got, const GradOutputs& want,
                                  const Case& spec) {
  const struct {
    std::string_view name;
    const OwnedTensor& got;
    const OwnedTensor& want;
  } outputs[] = {{"dq", got.dq, want.dq},
                 {"dk", got.dk, want.dk},
                 {"dw", got.dw, want.dw},
                 {"softmax_out", got.softmax_out, want.softmax_out},
                 {"loss_rows", got.loss_rows, want.loss_rows}};
  for (const auto& output : outputs) {
    const testing::AssertionResult same = SameBits(output.name, output.got, output.want, spec);
    if (!same) return same;
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult Written(std::string_view name, const OwnedTensor& got, const Case& spec) {
  for (int64_t i = 0; i < got.size(); ++i) {
    if (!got.Unwritten(i)) continue;
    return testing::AssertionFailure()
           << name << got.IndexString(i) << ": nobody wrote it\n  " << ReproduceCommand(spec);
  }
  return testing::AssertionSuccess();
}

double RelativeError(const OwnedTensor& got, const OwnedTensor& want) {
  double error = 0.0;
  double norm = 0.0;
  for (int64_t i = 0; i < want.size(); ++i) {
    error += std::pow(got.Get(i) - want.Get(i), 2);
    norm += std::pow(want.Get(i), 2);
  }
  return std::sqrt(error / norm);
}

double MaxError(const OwnedTensor& got, const OwnedTensor& want) {
  double most = 0.0;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = got.Get(i);
    const double b = want.Get(i);
    if (a == b) continue;
    const double error = std::abs(a - b);
    if (!(error <= most)) most = error;
  }
  return most;
}

}  // namespace kindling::test
