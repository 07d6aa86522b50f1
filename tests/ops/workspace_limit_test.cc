// The limit of a call's workspace that its shapes give, against what calls of these shapes take.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "kindling/operators.h"
#include "ops/launch.h"
#include "support/case.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/random.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

CallShape ShapeOf(const Case& spec, int64_t num_key_heads) {
  CallShape shape;
  shape.dtype = spec.dtype;
  shape.num_heads = spec.num_heads;
  shape.num_key_heads = num_key_heads;
  shape.head_dim = spec.head_dim;
  shape.num_batches = spec.num_batches();
  shape.num_keys = Placement(spec).num_allocated_keys;
  return shape;
}

testing::AssertionResult LimitHolds(const Case& spec) {
  const Indexer indexer(spec);
  const Teacher teacher(spec, Teacher::Lse::kAbsent);
  LseOutputs lse(indexer, {});
  GradOutputs grad(indexer, {});
  OwnedTensor p = TeacherOutput(teacher);
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    for (const int64_t num_threads : {1, 2, 5, 64}) {
      const struct {
        const char* name;
        Result<size_t> bytes;
        int64_t limit;
      } operators[] = {
          {"SoftmaxLse", SoftmaxLseWorkspaceBytes(MakeArgs(indexer, lse), num_threads),
           SoftmaxLseWorkspaceLimit(ShapeOf(spec, 1), num_threads)},
          {"KLLossGrad", KLLossGradWorkspaceBytes(MakeArgs(indexer, grad), num_threads),
           KLLossGradWorkspaceLimit(ShapeOf(spec, 1), num_threads)},
          {"AttentionL1Norm", AttentionL1NormWorkspaceBytes(MakeArgs(teacher, p), num_threads),
           AttentionL1NormWorkspaceLimit(ShapeOf(spec, spec.num_key_heads), num_threads)}};
      for (const auto& op : operators) {
        if (!op.bytes.ok()) return testing::AssertionFailure() << op.bytes.status().message();
        if (static_cast<int64_t>(op.bytes.value()) > op.limit) {
          return testing::AssertionFailure()
                 << op.name << ": " << op.bytes.value() << " bytes, limit " << op.limit << ", "
                 << num_threads << " threads, " << IsaName(isa);
        }
      }
    }
  }
  return testing::AssertionSuccess();
}

TEST(WorkspaceLimit, HoldsAtTheEdges) { ForEachCase(EdgeCases(), LimitHolds); }

TEST(WorkspaceLimit, HoldsForGeneratedCases) { ForGeneratedCases({.num_cases = 60}, LimitHolds); }

TEST(WorkspaceLimit, HoldsForFewRowsAndManyKeys) {
  Case spec;
  spec.num_heads = 3;
  spec.head_dim = 5;
  spec.num_rows = {2, 0, 1};
  spec.num_keys = {3 * kKeysPerSpan + 1, 9, kKeysPerSpan};
  ForEachCase({spec}, LimitHolds);
}

// It is no more than some padding above what a call of full lengths takes.
TEST(WorkspaceLimit, IsNotFarAboveWhatIsTaken) {
  Case spec;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.num_rows = {300};
  spec.num_keys = {3000};
  const Indexer indexer(spec);
  GradOutputs grad(indexer, {});
  const auto bytes = KLLossGradWorkspaceBytes(MakeArgs(indexer, grad), 2);
  const int64_t limit = KLLossGradWorkspaceLimit(ShapeOf(spec, 1), 2);
  EXPECT_LT(static_cast<double>(limit), 1.25 * static_cast<double>(bytes.value()));
}

TEST(WorkspaceLimit, Saturates) {
  CallShape shape;
  shape.num_heads = 1;
  shape.head_dim = int64_t{1} << 40;
  shape.num_batches = 1;
  shape.num_keys = int64_t{1} << 40;
  EXPECT_EQ(KLLossGradWorkspaceLimit(shape, 2), kInt64Max);
}

}  // namespace
}  // namespace kindling::test
