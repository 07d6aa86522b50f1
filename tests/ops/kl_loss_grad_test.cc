// KLLossGrad against the reference, for every instruction set.
#include <gtest/gtest.h>

#include <cmath>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/error_bounds.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

testing::AssertionResult MatchesReference(const Case& spec) {
  const Indexer problem(spec);
  const GradOutputs want = ReferenceKLLossGrad(problem);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    const GradBounds bounds = BoundKLLossGrad(problem);
    const GradOutputs got = RunKLLossGrad(problem, {}, {.num_threads = 2});
    const struct {
      std::string_view name;
      const OwnedTensor& got;
      const OwnedTensor& want;
      const Bounds& bounds;
    } outputs[] = {{"dq", got.dq, want.dq, bounds.dq},
                   {"dk", got.dk, want.dk, bounds.dk},
                   {"dw", got.dw, want.dw, bounds.dw},
                   {"softmax_out", got.softmax_out, want.softmax_out, bounds.softmax_out},
                   {"loss_rows", got.loss_rows, want.loss_rows, bounds.loss_rows}};
    for (const auto& output : outputs) {
      testing::AssertionResult result = Written(output.name, output.got, spec);
      if (result) result = Near(output.name, output.got, output.want, output.bounds, spec);
      if (!result) return result << "\n  on " << IsaName(isa);
    }
  }
  return testing::AssertionSuccess();
}

TEST(KLLossGrad, MatchesTheReferenceAtTheEdges) { ForEachCase(EdgeCases(), MatchesReference); }

TEST(KLLossGrad, MatchesTheReferenceOnGeneratedCases) {
  ForGeneratedCases({.num_cases = 150}, MatchesReference);
}

}  // namespace
}  // namespace kindling::test
