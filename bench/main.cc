// The benchmark driver. Takes the flags of Google Benchmark (--benchmark_filter, --benchmark_out,
// ...).
#include <benchmark/benchmark.h>

#include <string>

#include "kindling/kindling.h"

namespace kindling {
void RegisterPlanBenchmarks();
void RegisterOperatorBenchmarks();
}  // namespace kindling

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("instruction set",
                              std::string(kindling::IsaName(kindling::GetIsa())));
  benchmark::AddCustomContext("default threads", std::to_string(kindling::GetNumThreads()));
  kindling::RegisterPlanBenchmarks();
  kindling::RegisterOperatorBenchmarks();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
