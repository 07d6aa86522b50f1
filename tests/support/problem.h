// The tensors of a case, with values, and runs of the operators on them.
#ifndef KINDLING_TESTS_SUPPORT_PROBLEM_H_
#define KINDLING_TESTS_SUPPORT_PROBLEM_H_

#include <vector>

#include "kindling/operators.h"
#include "support/case.h"
#include "support/owned_tensor.h"

namespace kindling::test {

// What stands in elements that no operator may read: keys beyond the used length, columns of p that
// a row does not see, and everything of rows that are unused or see no key.
enum class Hidden { kNan, kFinite };

// Inputs of SoftmaxLse and KLLossGrad. Values are a function of the case alone; hidden ones apart,
// the same for either kind of hiding.
struct Indexer {
  explicit Indexer(const Case& spec, Hidden hidden = Hidden::kNan);
  // The very same values in fp64, for kindling::reference.
  Indexer Widened() const;
  // fp32, or fp64 if widened: the dtype of w, p, lse.
  DType wide() const { return w.dtype(); }

  Case spec;
  LengthTensors lengths;
  OwnedTensor q, k, w, p, lse, row_scale, metadata;
};

// Outputs, nothing written yet. An optional one that is not wanted is absent.
struct LseOutputs {
  struct Wanted {
    bool loss_rows = true;
  };
  LseOutputs(const Indexer& problem, Wanted wanted);
  OwnedTensor lse, loss_rows;
};

struct GradOutputs {
  struct Wanted {
    bool softmax_out = true;
    bool loss_rows = true;
  };
  GradOutputs(const Indexer& problem, Wanted wanted);
  OwnedTensor dq, dk, dw, softmax_out, loss_rows;
};

SoftmaxLseArgs MakeArgs(const Indexer& problem, LseOutputs& outputs);
KLLossGradArgs MakeArgs(const Indexer& problem, GradOutputs& outputs);

// Run an operator and record a test failure if it refuses, or if a guard or an input has changed.
LseOutputs RunSoftmaxLse(const Indexer& problem, LseOutputs::Wanted wanted = {},
                         const RunOptions& options = {});
GradOutputs RunKLLossGrad(const Indexer& problem, GradOutputs::Wanted wanted = {},
                          const RunOptions& options = {});
// The reference, on the widened problem; all optional outputs.
LseOutputs ReferenceSoftmaxLse(const Indexer& problem);
GradOutputs ReferenceKLLossGrad(const Indexer& problem);

// Inputs of AttentionL1Norm.
struct Teacher {
  enum class Lse { kGiven, kAbsent };
  Teacher(const Case& spec, Lse lse_kind, Hidden hidden = Hidden::kNan);
  Teacher Widened() const;

  Case spec;
  LengthTensors lengths;
  OwnedTensor q, k, lse, metadata;
  double softmax_scale = 1.0;
};

// p with nothing written yet.
OwnedTensor TeacherOutput(const Teacher& problem);
AttentionL1NormArgs MakeArgs(const Teacher& problem, OwnedTensor& p);
OwnedTensor RunAttentionL1Norm(const Teacher& problem, const RunOptions& options = {});
OwnedTensor ReferenceAttentionL1Norm(const Teacher& problem);

// Forces an instruction set, and goes back to the one before.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;
  ~ScopedIsa();

 private:
  const Isa before_;
};

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_PROBLEM_H_
