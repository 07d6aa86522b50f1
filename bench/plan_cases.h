// The batches whose planning is measured, in time by plan_bench.cc and in instructions by
// plan_probe.cc.
#ifndef KINDLING_BENCH_PLAN_CASES_H_
#define KINDLING_BENCH_PLAN_CASES_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kindling/metadata.h"

namespace kindling::bench {

inline constexpr int64_t kBenchCores = 24;

// Causal sequences with as many keys as rows, or more.
struct Ragged {
  std::vector<int32_t> cu_seqlens_q{0};
  std::vector<int32_t> cu_seqlens_k{0};

  void Add(int32_t num_rows, int32_t num_keys) {
    cu_seqlens_q.push_back(cu_seqlens_q.back() + num_rows);
    cu_seqlens_k.push_back(cu_seqlens_k.back() + num_keys);
  }
  MetadataArgs Args(PlanPolicy policy) const {
    MetadataArgs args;
    args.num_heads_q = 64;
    args.num_heads_k = 1;
    args.head_dim = 128;
    args.layout_q = "TND";
    args.layout_k = "TND";
    args.mask_mode = 3;
    args.num_cores = kBenchCores;
    args.policy = policy;
    const auto size = static_cast<int64_t>(cu_seqlens_q.size());
    args.cu_seqlens_q = {cu_seqlens_q.data(), DType::kInt32, {size}};
    args.cu_seqlens_k = {cu_seqlens_k.data(), DType::kInt32, {size}};
    return args;
  }
};

inline Ragged Equal(int64_t num_sequences, int32_t num_rows) {
  Ragged batch;
  for (int64_t i = 0; i < num_sequences; ++i) batch.Add(num_rows, num_rows);
  return batch;
}

inline Ragged Random(int64_t num_sequences, int32_t max_rows) {
  Ragged batch;
  std::mt19937 generator(1);
  std::uniform_int_distribution<int32_t> rows(1, max_rows);
  std::uniform_int_distribution<int32_t> more_keys(0, 1000);
  for (int64_t i = 0; i < num_sequences; ++i) {
    const int32_t num_rows = rows(generator);
    batch.Add(num_rows, num_rows + more_keys(generator));
  }
  return batch;
}

struct PlanCase {
  std::string name;
  Ragged batch;
  PlanPolicy policy;
};

inline std::vector<PlanCase> PlanCases() {
  std::vector<PlanCase> cases;
  for (int64_t num_sequences : {1, 1000, 1000000}) {
    for (int32_t num_rows : {1, 2000}) {
      cases.push_back({"plan/rows/sequences:" + std::to_string(num_sequences) +
                           "/rows_each:" + std::to_string(num_rows),
                       Equal(num_sequences, num_rows), PlanPolicy::kRows});
    }
  }
  const auto balanced = [&](const char* name, const Ragged& batch) {
    cases.push_back({std::string("plan/balanced/") + name, batch, PlanPolicy::kBalanced});
  };
  balanced("one_sequence:2048", Equal(1, 2048));
  balanced("one_sequence:1000000", Equal(1, 1000000));
  balanced("sequences:32/rows_each:28", Equal(32, 28));
  balanced("sequences:1000/rows_below:2000", Random(1000, 2000));
  balanced("sequences:63/rows_below:3000", Random(63, 3000));
  balanced("sequences:100000/rows_below:20", Random(100000, 20));
  return cases;
}

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_PLAN_CASES_H_
