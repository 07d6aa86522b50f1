// operator_probe FILE [LINE]
//
// Runs one problem of a case file on one thread, for a tool that counts instructions inside
// ProbedCall: bench/count_instructions runs it under callgrind. Without a line, lists the file's
// lines with their multiply-adds.
#include <cstdio>
#include <string>

#include "bench/bench_problem.h"
#include "support/case_file.h"

extern "C" __attribute__((noinline)) bool ProbedCall(kindling::bench::BenchProblem* problem,
                                                     const kindling::RunOptions* options) {
  return problem->Run(*options).ok();
}

namespace kindling::bench {
namespace {

int Probe(const test::OperatorCase& spec) {
  if (!SetIsa(spec.isa.value_or(GetIsa())).ok()) return 1;
  BenchProblem problem(spec);
  RunOptions options;
  options.num_threads = 1;
  if (!problem.Run(options).ok()) return 1;  // symbols are resolved and memory is warm
  return ProbedCall(&problem, &options) ? 0 : 1;
}

int Main(int argc, char** argv) {
  if (argc < 2) return 2;
  const test::CaseFile file = test::ReadCaseFile(argv[1]);
  if (!file.error.empty()) {
    std::fprintf(stderr, "%s\n", file.error.c_str());
    return 2;
  }
  for (const test::CaseLine& line : file.lines) {
    if (argc < 3) {
      std::printf("%s\t%lld\n", line.text.c_str(),
                  static_cast<long long>(test::NumMultiplyAdds(line.sides[0].spec)));
    } else if (line.text == argv[2]) {
      return Probe(line.sides[0]);
    }
  }
  return argc < 3 ? 0 : 2;
}

}  // namespace
}  // namespace kindling::bench

int main(int argc, char** argv) { return kindling::bench::Main(argc, argv); }
