// The metadata operator: compatible and balanced plans, by the number of sequences and rows.
#include "bench/plan_bench.h"

#include <benchmark/benchmark.h>

#include <cstdint>

#include "bench/plan_cases.h"
#include "kindling/metadata.h"

namespace kindling::bench {
namespace {

void MakePlan(benchmark::State& state, const Ragged& batch, PlanPolicy policy) {
  const MetadataArgs args = batch.Args(policy);
  const int64_t num_rows = batch.cu_seqlens_q.back();
  for (auto _ : state) {
    const Result<Metadata> metadata = MakeMetadata(args);
    if (!metadata.ok() || metadata.value().total_size != num_rows) {
      state.SkipWithError("wrong plan");
      return;
    }
    benchmark::DoNotOptimize(metadata.value());
  }
  state.counters["rows"] = static_cast<double>(num_rows);
  state.counters["rows/s"] = benchmark::Counter(static_cast<double>(num_rows),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

void RegisterPlanBenchmarks() {
  for (const PlanCase& plan : PlanCases()) {
    benchmark::RegisterBenchmark(plan.name.c_str(), [plan](benchmark::State& state) {
      MakePlan(state, plan.batch, plan.policy);
    });
  }
}

}  // namespace kindling::bench
