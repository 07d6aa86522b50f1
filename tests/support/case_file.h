// Files of problems, one a line, that tests and the benchmark driver share.
//
//   grad threads=2 goal=grad_2t dtype=bf16 mask=3 heads=16 dim=128 rows=2048 keys=2048
//   grad loss=yes heads=8 dim=128 rows=64 keys=64 / grad heads=8 dim=128 rows=64 keys=64
//
// An operator (lse, grad, teacher or step), then words of this file, then those of support/case.h,
// each in any order. Behind " / " stands a second problem to measure the first one against. Empty
// lines and those that begin with '#' say nothing.
#ifndef KINDLING_TESTS_SUPPORT_CASE_FILE_H_
#define KINDLING_TESTS_SUPPORT_CASE_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kindling/runtime.h"
#include "support/case.h"

namespace kindling::test {

// A step is what training needs: log-sum-exp, loss rows and gradients.
enum class Operator { kLse, kGrad, kTeacher, kStep };

inline bool HasGradients(Operator op) { return op == Operator::kGrad || op == Operator::kStep; }

struct OperatorCase {
  Operator op = Operator::kGrad;
  int64_t num_threads = 1;  // threads=
  std::optional<Isa> isa;   // isa=; absent: the one in use
  std::string goal;         // goal=: the row of the goals table that it belongs to
  bool loss_rows = false;   // loss=; of lse and grad
  bool softmax_out = true;  // softmax=; of grad
  bool teacher_lse = true;  // lse=given or lse=absent
  Case spec;
};

struct CaseLine {
  std::string text;
  std::vector<OperatorCase> sides;  // one, or two to be compared
};

// Absent if the line is no such problem.
std::optional<CaseLine> ParseCaseLine(std::string_view line);

struct CaseFile {
  std::vector<CaseLine> lines;
  std::string error;  // empty if the file was read
};
CaseFile ReadCaseFile(const std::string& path);

// The folder tests/cases of the source tree.
std::string CasesFolder();

std::string_view OperatorName(Operator op);

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_CASE_FILE_H_
