// Measures one line of a case file: its answer first, then its time, between two probes of what the
// processor can do.
#ifndef KINDLING_BENCH_MEASURE_H_
#define KINDLING_BENCH_MEASURE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "bench/check.h"
#include "bench/peak_probe.h"
#include "support/case_file.h"

namespace kindling::bench {

// Median, and the distance of the quartiles over the median.
struct Spread {
  double median = 0.0;
  double spread = 0.0;
};
Spread MedianOf(std::vector<double> values);

struct MeasureOptions {
  double seconds = 1.0;  // for the repetitions of one side
  int min_repetitions = 3;
  int max_repetitions = 40;
  bool check_answer = true;
};

// One side of a line.
struct Side {
  Isa isa = Isa::kPortable;
  Peak peak = Peak::kFp32x4;
  Spread micros;      // of one call
  Spread share;       // of the roofline by the rates that were measured around each repetition
  Spread peak_flops;  // a second
  Spread peak_exps;   // a second; 0 where exps do not count
  double gflops = 0.0;
  double gigabytes = 0.0;      // a second
  size_t workspace_bytes = 0;  // what ...WorkspaceBytes says
  size_t peak_bytes = 0;       // growth of the resident set during the first call
  int64_t num_pairs = 0;
  Errors errors;
};

struct Measurement {
  std::vector<Side> sides;
  Spread ratio;  // of the sides' times, formed per repetition; 0 where there is one side
  bool checked = false;
  int num_repetitions = 0;
};

// Errors: an instruction set that the processor lacks, what the operator says, an answer that
// differs from the reference.
Result<Measurement> Measure(const test::CaseLine& line, const MeasureOptions& options);

// What a result was made with.
struct Provenance {
  std::string machine;
  std::string commit;
  std::string date;
};

// One line of JSON.
std::string ToJson(const test::CaseLine& line, const Measurement& measured,
                   const Provenance& provenance);

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_MEASURE_H_
