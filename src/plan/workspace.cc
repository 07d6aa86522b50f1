#include "plan/workspace.h"

#include <initializer_list>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"

namespace kindling {
namespace {

constexpr int64_t kElementBytes = 4;
constexpr int64_t kLineBytes = kAlignment;

// Hands out consecutive, aligned ranges.
class Ledger {
 public:
  int64_t Reserve(std::initializer_list<int64_t> factors) {
    const int64_t begin = end_;
    int64_t bytes = 1;
    for (int64_t factor : factors) bytes = SaturatingMul(bytes, factor);
    end_ = SaturatingAdd(end_, SaturatingAdd(bytes, kLineBytes - 1));
    if (end_ != kInt64Max) end_ -= end_ % kLineBytes;
    return begin;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

int64_t PaddedWidth(const WorkspaceDims& dims) {
  if (dims.head_dim > kInt64Max - dims.panel_width) return kInt64Max;
  return RoundUp(dims.head_dim, dims.panel_width);
}

// Places the workers' parts behind what is shared.
void Finish(const WorkspaceDims& dims, Ledger shared, const Ledger& worker,
            WorkspaceLayout& layout) {
  layout.worker_bytes = worker.end();
  layout.worker_begin = shared.Reserve({dims.num_workers, worker.end()});
  layout.bytes = shared.end();
}

}  // namespace

WorkspaceLayout LayOutSoftmaxLse(const WorkspaceDims& dims) {
  const int64_t width = PaddedWidth(dims);
  WorkspaceLayout layout;
  Ledger shared;
  layout.transposed_keys = shared.Reserve({dims.num_padded_keys, dims.head_dim, kElementBytes});
  Ledger worker;
  layout.queries = worker.Reserve({dims.pairs_per_block, width, kElementBytes});
  layout.scores = worker.Reserve({dims.pairs_per_block, dims.score_stride, kElementBytes});
  layout.pair_values = worker.Reserve({2, dims.pairs_per_block, kElementBytes});
  layout.key_rows = worker.Reserve({dims.keys_per_chunk, width, kElementBytes});
  Finish(dims, shared, worker, layout);
  return layout;
}

WorkspaceLayout LayOutKLLossGrad(const WorkspaceDims& dims) {
  const int64_t width = PaddedWidth(dims);
  WorkspaceLayout layout;
  Ledger shared;
  layout.transposed_keys = shared.Reserve({dims.num_padded_keys, dims.head_dim, kElementBytes});
  layout.key_panels = shared.Reserve({dims.num_padded_keys, width, kElementBytes});
  layout.dk_sums = shared.Reserve({dims.num_padded_keys, width, kElementBytes});
  layout.chunk_tickets = shared.Reserve({dims.num_chunks, kLineBytes});
  layout.chunk_finite = shared.Reserve({dims.num_chunks});
  Ledger worker;
  layout.queries = worker.Reserve({dims.pairs_per_block, width, kElementBytes});
  layout.query_panels = worker.Reserve({dims.pairs_per_block, width, kElementBytes});
  layout.scores = worker.Reserve({dims.pairs_per_block, dims.score_stride, kElementBytes});
  layout.dq_sums = worker.Reserve({dims.pairs_per_block, width, kElementBytes});
  layout.pair_values = worker.Reserve({2, dims.pairs_per_block, kElementBytes});
  layout.key_rows = worker.Reserve({dims.keys_per_chunk, width, kElementBytes});
  Finish(dims, shared, worker, layout);
  return layout;
}

WorkspaceLayout LayOutAttentionL1Norm(const WorkspaceDims& dims) {
  const int64_t width = PaddedWidth(dims);
  WorkspaceLayout layout;
  Ledger shared;
  layout.transposed_keys =
      shared.Reserve({dims.num_key_heads, dims.num_padded_keys, dims.head_dim, kElementBytes});
  Ledger worker;
  layout.queries = worker.Reserve({dims.pairs_per_block, width, kElementBytes});
  layout.scores = worker.Reserve({dims.pairs_per_block, dims.score_stride, kElementBytes});
  layout.pair_values = worker.Reserve({2, dims.pairs_per_block, kElementBytes});
  layout.row_sums = worker.Reserve({dims.rows_per_block, dims.keys_per_chunk, kElementBytes});
  layout.key_rows = worker.Reserve({dims.keys_per_chunk, width, kElementBytes});
  Finish(dims, shared, worker, layout);
  return layout;
}

}  // namespace kindling
