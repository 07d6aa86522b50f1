// Ragged packed batches for the tests of plans.
#ifndef KINDLING_TESTS_PLAN_RAGGED_BATCH_H_
#define KINDLING_TESTS_PLAN_RAGGED_BATCH_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "kindling/metadata.h"

namespace kindling {

// Owns the lengths that MetadataArgs points to.
struct RaggedBatch {
  std::vector<int32_t> cu_seqlens_q{0};
  std::vector<int32_t> cu_seqlens_k{0};
  std::vector<int32_t> residual;
  int64_t mask_mode = 3;
  int64_t cmp_ratio = 1;

  void Add(int64_t num_rows, int64_t num_keys, int64_t sequence_residual = 0) {
    cu_seqlens_q.push_back(static_cast<int32_t>(cu_seqlens_q.back() + num_rows));
    cu_seqlens_k.push_back(static_cast<int32_t>(cu_seqlens_k.back() + num_keys));
    residual.push_back(static_cast<int32_t>(sequence_residual));
  }
  void Add(int64_t count, std::pair<int64_t, int64_t> rows_and_keys) {
    for (int64_t i = 0; i < count; ++i) Add(rows_and_keys.first, rows_and_keys.second);
  }
  int64_t num_rows() const { return cu_seqlens_q.back(); }

  MetadataArgs Args(int64_t num_cores, PlanPolicy policy = PlanPolicy::kBalanced) const {
    MetadataArgs args;
    args.num_heads_q = 64;
    args.num_heads_k = 1;
    args.head_dim = 128;
    args.layout_q = "TND";
    args.layout_k = "TND";
    args.mask_mode = mask_mode;
    args.cmp_ratio = cmp_ratio;
    args.num_cores = num_cores;
    args.policy = policy;
    const auto view = [](const std::vector<int32_t>& values) {
      return ConstTensor(values.data(), DType::kInt32, {static_cast<int64_t>(values.size())});
    };
    args.cu_seqlens_q = view(cu_seqlens_q);
    args.cu_seqlens_k = view(cu_seqlens_k);
    args.cmp_residual_k = view(residual);
    return args;
  }
};

}  // namespace kindling

#endif  // KINDLING_TESTS_PLAN_RAGGED_BATCH_H_
