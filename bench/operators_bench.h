#ifndef KINDLING_BENCH_OPERATORS_BENCH_H_
#define KINDLING_BENCH_OPERATORS_BENCH_H_

#include <string>
#include <vector>

#include "bench/measure.h"
#include "support/case_file.h"

namespace kindling::bench {

struct BenchSettings {
  MeasureOptions options;
  std::string json_path;  // results are appended here; empty: nowhere
  Provenance provenance;
};

// One benchmark of one iteration for each line: what is repeated, and how often, Measure knows.
void RegisterOperatorBenchmarks(const std::vector<test::CaseLine>& lines,
                                const BenchSettings& settings);

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_OPERATORS_BENCH_H_
