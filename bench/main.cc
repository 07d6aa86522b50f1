// The benchmark driver. Takes the flags of Google Benchmark (--benchmark_filter, ...), and
//
//   --cases=FILE      problems to measure (again for more files); none: the plans alone
//   --goal=TEXT       only problems of goals whose names contain it
//   --json=FILE       appends one line of JSON for every measured problem
//   --seconds=X       spent on the repetitions of one problem, at least three; default 1
//   --isa=NAME        instead of the best instruction set
//   --commit=TEXT     what to write down as the commit
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>

#include "bench/operators_bench.h"
#include "bench/plan_bench.h"
#include "kindling/kindling.h"

namespace kindling::bench {
namespace {

std::string Machine() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string name = "unknown processor";
  int num_processors = 0;
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("processor")) ++num_processors;
    if (line.starts_with("model name")) name = line.substr(line.find(':') + 2);
  }
  return name + ", " + std::to_string(num_processors) + " processors";
}

std::string Now() {
  char text[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

// What follows `flag` in `argument`; null if that is another flag.
const char* ValueOf(std::string_view flag, const char* argument) {
  return std::string_view(argument).starts_with(flag) ? argument + flag.size() : nullptr;
}

bool UseIsa(std::string_view name) {
  for (const Isa isa : SupportedIsas()) {
    if (IsaName(isa) == name) return SetIsa(isa).ok();
  }
  std::cerr << "--isa: expected an instruction set of this processor, got " << name << "\n";
  return false;
}

struct Arguments {
  BenchSettings settings;
  std::string goal;
  std::vector<test::CaseLine> lines;
};

// Takes one argument that is not Google Benchmark's. Returns false after a message.
bool Take(const char* argument, Arguments& out) {
  if (const char* path = ValueOf("--cases=", argument)) {
    test::CaseFile file = test::ReadCaseFile(path);
    out.lines.insert(out.lines.end(), file.lines.begin(), file.lines.end());
    if (!file.error.empty()) std::cerr << "--cases: " << file.error << "\n";
    return file.error.empty();
  }
  if (const char* name = ValueOf("--isa=", argument)) return UseIsa(name);
  if (const char* path = ValueOf("--json=", argument)) {
    out.settings.json_path = path;
  } else if (const char* goal = ValueOf("--goal=", argument)) {
    out.goal = goal;
  } else if (const char* commit = ValueOf("--commit=", argument)) {
    out.settings.provenance.commit = commit;
  } else if (const char* seconds = ValueOf("--seconds=", argument)) {
    out.settings.options.seconds = std::atof(seconds);
  } else {
    std::cerr << "expected a flag that bench/main.cc lists, got " << argument << "\n";
    return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  Arguments arguments;
  arguments.settings.provenance = {Machine(), "unknown", Now()};
  for (int i = 1; i < argc; ++i) {
    if (!Take(argv[i], arguments)) return 2;
  }
  std::erase_if(arguments.lines, [&arguments](const test::CaseLine& line) {
    return line.sides[0].goal.find(arguments.goal) == std::string::npos;
  });
  benchmark::AddCustomContext("instruction set", std::string(IsaName(GetIsa())));
  benchmark::AddCustomContext("default threads", std::to_string(GetNumThreads()));
  RegisterPlanBenchmarks();
  RegisterOperatorBenchmarks(arguments.lines, arguments.settings);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace kindling::bench

int main(int argc, char** argv) { return kindling::bench::Main(argc, argv); }
