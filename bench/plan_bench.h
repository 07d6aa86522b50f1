#ifndef KINDLING_BENCH_PLAN_BENCH_H_
#define KINDLING_BENCH_PLAN_BENCH_H_

namespace kindling::bench {

void RegisterPlanBenchmarks();

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_PLAN_BENCH_H_
