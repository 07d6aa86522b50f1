// Holds the outputs of a benchmark problem against kindling::reference at any size: on a few rows
// and keys, each a small problem of its own.
#ifndef KINDLING_BENCH_CHECK_H_
#define KINDLING_BENCH_CHECK_H_

#include "bench/bench_problem.h"

namespace kindling::bench {

// Norms of the errors; 0 where the operator has no such output. lse: greatest absolute error. The
// others: 2-norm of the error over 2-norm of the exact result.
struct Errors {
  double lse = 0.0;
  double softmax_out = 0.0;
  double loss_rows = 0.0;
  double dq = 0.0;
  double dk = 0.0;
  double dw = 0.0;
  double p = 0.0;

  // Whether the answer is right, which a goal of accuracy is stricter about than this.
  bool Acceptable(DType dtype) const;
};

// Requires: the problem has run.
Result<Errors> CheckAgainstReference(BenchProblem& problem);

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_CHECK_H_
