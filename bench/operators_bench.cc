// The floating-point operators on the problems of case files.
#include "bench/operators_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <fstream>
#include <memory>

namespace kindling::bench {
namespace {

// A line without what stands at its default, short enough for a table.
std::string Name(const test::OperatorCase& side) {
  const test::Case& spec = side.spec;
  const auto first = [](const std::vector<int64_t>& lengths) {
    return lengths.size() == 1 ? std::to_string(lengths[0]) : std::to_string(lengths.size()) + "x";
  };
  const char* dtype = spec.dtype == DType::kFloat32   ? "fp32"
                      : spec.dtype == DType::kFloat16 ? "fp16"
                                                      : "bf16";
  std::string name = std::string(OperatorName(side.op)) + "/" + dtype;
  if (side.isa) name += "/" + std::string(IsaName(*side.isa));
  if (side.op == test::Operator::kTeacher) name += side.teacher_lse ? "/lse" : "/no_lse";
  if (side.loss_rows) name += "/loss";
  name += spec.mask_mode == MaskMode::kCausal ? "/causal" : "/full";
  return name + "/rows:" + first(spec.num_rows) + "/keys:" + first(spec.num_keys) +
         "/heads:" + std::to_string(spec.num_heads) + "/dim:" + std::to_string(spec.head_dim) +
         "/threads:" + std::to_string(side.num_threads);
}

// Whether this processor has every instruction set that a line names.
bool CanRun(const test::CaseLine& line) {
  const std::vector<Isa> here = SupportedIsas();
  return std::all_of(line.sides.begin(), line.sides.end(), [&here](const auto& side) {
    return !side.isa || std::find(here.begin(), here.end(), *side.isa) != here.end();
  });
}

void RunLine(benchmark::State& state, const test::CaseLine& line, const BenchSettings& settings) {
  const Result<Measurement> measured = Measure(line, settings.options);
  if (!measured.ok()) {
    state.SkipWithError(measured.status().message().c_str());
    return;
  }
  const Side& side = measured.value().sides[0];
  for (auto _ : state) state.SetIterationTime(side.micros.median * 1e-6);
  state.counters["spread"] = side.micros.spread;
  state.counters["share"] = side.share.median;
  state.counters["GFLOP/s"] = side.gflops;
  state.counters["GB/s"] = side.gigabytes;
  state.counters["MiB"] = static_cast<double>(side.peak_bytes) / (1 << 20);
  if (line.sides.size() == 2) state.counters["ratio"] = measured.value().ratio.median;
  if (settings.json_path.empty()) return;
  std::ofstream json(settings.json_path, std::ios::app);
  json << ToJson(line, measured.value(), settings.provenance) << "\n";
}

}  // namespace

void RegisterOperatorBenchmarks(const std::vector<test::CaseLine>& lines,
                                const BenchSettings& settings) {
  for (const test::CaseLine& line : lines) {
    if (!CanRun(line)) continue;
    // When it is run again, only its time is new.
    const auto once = std::make_shared<BenchSettings>(settings);
    std::string name = Name(line.sides[0]);
    if (line.sides.size() == 2) name += "/over/" + Name(line.sides[1]);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [line, once](benchmark::State& state) {
                                   RunLine(state, line, *once);
                                   once->options.check_answer = false;
                                 })
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(1)
        ->UseManualTime();
  }
}

}  // namespace kindling::bench
