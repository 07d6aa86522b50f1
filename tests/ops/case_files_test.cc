// Every problem that the benchmarks measure, cut to a few rows and keys, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "support/case_file.h"
#include "support/compare.h"
#include "support/error_bounds.h"
#include "support/isas.h"
#include "support/problem.h"

namespace kindling::test {
namespace {

// The same with at most so many rows and keys in each of at most so many sequences.
OperatorCase Cut(OperatorCase side) {
  constexpr int64_t kMostRows = 9;
  constexpr int64_t kMostKeys = 70;
  constexpr size_t kMostSequences = 3;
  for (auto* lengths : {&side.spec.num_rows, &side.spec.num_keys}) {
    lengths->resize(std::min(lengths->size(), kMostSequences));
  }
  for (int64_t& rows : side.spec.num_rows) rows = std::min(rows, kMostRows);
  for (int64_t& keys : side.spec.num_keys) keys = std::min(keys, kMostKeys);
  side.spec.seed = "cut";
  return side;
}

testing::AssertionResult AgreesWithReference(const OperatorCase& side) {
  const Case& spec = side.spec;
  const RunOptions options{side.num_threads};
  if (side.op == Operator::kTeacher) {
    const Teacher problem(spec, side.teacher_lse ? Teacher::Lse::kGiven : Teacher::Lse::kAbsent);
    return Near("p", RunAttentionL1Norm(problem, options), ReferenceAttentionL1Norm(problem),
                BoundAttentionL1Norm(problem), spec);
  }
  const Indexer problem(spec);
  if (side.op != Operator::kGrad) {
    const LseOutputs got = RunSoftmaxLse(problem, {side.loss_rows}, options);
    const testing::AssertionResult near =
        Near("lse", got.lse, ReferenceSoftmaxLse(problem).lse, BoundSoftmaxLse(problem).lse, spec);
    if (!near || side.op == Operator::kLse) return near;
  }
  const GradOutputs got = RunKLLossGrad(problem, {side.softmax_out, side.loss_rows}, options);
  const GradOutputs want = ReferenceKLLossGrad(problem);
  const GradBounds bounds = BoundKLLossGrad(problem);
  testing::AssertionResult near = Near("dq", got.dq, want.dq, bounds.dq, spec);
  if (near) near = Near("dk", got.dk, want.dk, bounds.dk, spec);
  if (near) near = Near("dw", got.dw, want.dw, bounds.dw, spec);
  if (near && side.softmax_out) {
    near = Near("softmax_out", got.softmax_out, want.softmax_out, bounds.softmax_out, spec);
  }
  return near;
}

TEST(CaseFiles, EveryProblemAgreesWithTheReference) {
  std::set<std::string> seen;  // lines that differ in length alone are cut to one problem
  for (const char* name : {"curve", "goals", "instructions", "peers"}) {
    for (const CaseLine& line : ReadCaseFile(CasesFolder() + "/" + name + ".txt").lines) {
      for (const OperatorCase& full : line.sides) {
        const OperatorCase side = Cut(full);
        const std::vector<Isa> isas = side.isa ? std::vector<Isa>{*side.isa} : TestedIsas();
        for (const Isa isa : isas) {
          const std::vector<Isa> here = TestedIsas();
          if (std::find(here.begin(), here.end(), isa) == here.end()) continue;
          const std::string key = std::string(OperatorName(side.op)) + ToString(side.spec) +
                                  std::string(IsaName(isa)) + std::to_string(side.num_threads) +
                                  (side.softmax_out ? "s" : "") + (side.loss_rows ? "l" : "") +
                                  (side.teacher_lse ? "t" : "");
          if (!seen.insert(key).second) continue;
          const ScopedIsa forced(isa);
          EXPECT_TRUE(AgreesWithReference(side)) << IsaName(isa) << "\n" << line.text;
        }
      }
    }
  }
  EXPECT_GT(seen.size(), 20u);
}

}  // namespace
}  // namespace kindling::test
