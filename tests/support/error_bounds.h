// How far a correct fp32 computation may be from the exact result, element by element.
//
// The bounds follow the formulas of kindling/operators.h in double and carry the first-order error
// of every step along. With u = 2^-24 and gamma(n) = n u / (1 - n u):
//
//   S         |err| <= gamma(D) sum |q||k|                   any order, fused or not
//   I         sum |w| err_S + gamma(N1 + 1) sum |w| (R + err_S)
//   exp, ln   2 ulp, as the kernels promise (tests/kernels checks it)
//   dS        where |S| <= err_S the gate may fall either way: all of |dI w| is error
//             and half a bf16 unit more where products take bf16 operands
//   sums      gamma of the longest chain of additions: within a chunk of keys or a block of rows,
//   and
//             over chunks or blocks
//   outputs   half a unit in the last place of the output's dtype
//
// They are worst cases, which real errors stay well below; accuracy_test.cc measures those.
#ifndef KINDLING_TESTS_SUPPORT_ERROR_BOUNDS_H_
#define KINDLING_TESTS_SUPPORT_ERROR_BOUNDS_H_

#include <vector>

#include "support/problem.h"

namespace kindling::test {

// One bound per element of the output of that name; 0 where the result must be exact.
using Bounds = std::vector<double>;

struct LseBounds {
  Bounds lse, loss_rows;
};
struct GradBounds {
  Bounds dq, dk, dw, softmax_out, loss_rows;
};

LseBounds BoundSoftmaxLse(const Indexer& problem);
// For the instruction set that is chosen when it is called.
GradBounds BoundKLLossGrad(const Indexer& problem);
Bounds BoundAttentionL1Norm(const Teacher& problem);

// Half the distance between numbers of `dtype` around `value`: the error of rounding to it.
double HalfUlp(DType dtype, double value);

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_ERROR_BOUNDS_H_
