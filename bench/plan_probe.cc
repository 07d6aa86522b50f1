// Plans one case of plan_cases.h once, for a tool that counts instructions inside ProbedCall:
// bench/count_instructions runs it under callgrind. Without an argument, lists the cases.
#include <cstdio>
#include <string>

#include "bench/plan_cases.h"
#include "kindling/metadata.h"

extern "C" __attribute__((noinline)) int ProbedCall(const kindling::MetadataArgs* args) {
  return kindling::MakeMetadata(*args).ok() ? 0 : 1;
}

int main(int argc, char** argv) {
  for (const kindling::bench::PlanCase& plan : kindling::bench::PlanCases()) {
    if (argc < 2) {
      std::printf("%s\t%d\n", plan.name.c_str(), plan.batch.cu_seqlens_q.back());
    } else if (plan.name == argv[1]) {
      const kindling::MetadataArgs args = plan.batch.Args(plan.policy);
      if (!kindling::MakeMetadata(args).ok()) return 1;  // symbols are resolved and memory is warm
      return ProbedCall(&args);
    }
  }
  return argc < 2 ? 0 : 2;
}
