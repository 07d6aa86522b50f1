#include "plan/workspace.h"

#include <initializer_list>

#include "base/aligned_buffer.h"
#include "base/checked_math.h"

namespace kindling {
namespace {

constexpr int64_t kElementBytes = 4;
constexpr int64_t kLineBytes = kAlignment;
constexpr int64_t kRowTotalBytes = 32;

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

// Lengths of rows and panels that follow from head_dim.
struct Widths {
  explicit Widths(const OperandDims& dims)
      : depth(CeilDiv(dims.head_dim, dims.values_per_word)),
        words(SaturatingRoundUp(depth, kVector)),
        values(SaturatingRoundUp(dims.head_dim, kVector)),
        panels(SaturatingRoundUp(dims.head_dim, dims.panel_width)) {}

  static constexpr int64_t kVector = 16;  // the widest vector's floats
  int64_t depth;                          // words of head_dim
  int64_t words, values, panels;
};

// Places what products of a pair of operands need.
OperandLayout LayOutOperands(const WorkspaceDims& dims, const OperandDims& operands, Ledger& shared,
                             Ledger& worker) {
  const Widths widths(operands);
  OperandLayout layout;
  layout.transposed_keys =
      shared.Reserve({operands.num_key_heads, dims.num_padded_keys, widths.depth, kElementBytes});
  layout.queries = worker.Reserve({operands.pairs_per_block, widths.words, kElementBytes});
  layout.scores = worker.Reserve({operands.pairs_per_block, dims.score_stride, kElementBytes});
  layout.key_rows = worker.Reserve({operands.panel_width, widths.words, kElementBytes});
  return layout;
}

// Places the parts of totals and workers behind what is shared.
void Finish(const WorkspaceDims& dims, Ledger shared, const Ledger& totals, const Ledger& worker,
            WorkspaceLayout& layout) {
  const bool split = dims.num_split_blocks > 0;
  if (split) layout.block_turns = shared.Reserve({dims.num_split_blocks, kLineBytes});
  layout.totals_bytes = totals.end();
  layout.totals_begin =
      shared.Reserve({split ? dims.num_split_blocks : dims.num_workers, totals.end()});
  layout.worker_bytes = worker.end();
  layout.worker_begin = shared.Reserve({dims.num_workers, worker.end()});
  layout.bytes = shared.end();
}

}  // namespace

WorkspaceLayout LayOutSoftmaxLse(const WorkspaceDims& dims) {
  WorkspaceLayout layout;
  Ledger shared, totals, worker;
  layout.indexer = LayOutOperands(dims, dims.indexer, shared, worker);
  layout.row_totals = totals.Reserve({dims.rows_per_block, kRowTotalBytes});
  layout.pair_values = worker.Reserve({2, dims.indexer.pairs_per_block, kElementBytes});
  Finish(dims, shared, totals, worker, layout);
  return layout;
}

WorkspaceLayout LayOutKLLossGrad(const WorkspaceDims& dims) {
  const Widths widths(dims.indexer);
  const int64_t pairs = dims.indexer.pairs_per_block;
  const auto words_of = [&](int64_t count) { return CeilDiv(count, dims.indexer.values_per_word); };
  WorkspaceLayout layout;
  Ledger shared, totals, worker;
  layout.indexer = LayOutOperands(dims, dims.indexer, shared, worker);
  if (dims.indexer.packs_keys_once) {
    layout.key_panels =
        shared.Reserve({widths.panels, words_of(dims.num_padded_keys), kElementBytes});
  }
  layout.dk_sums = shared.Reserve({dims.num_padded_keys, widths.values, kElementBytes});
  layout.chunk_tickets = shared.Reserve({dims.num_chunks, kLineBytes});
  layout.chunk_finite = shared.Reserve({dims.num_chunks});
  if (dims.num_split_blocks > 0) {
    layout.unit_sums = shared.Reserve({dims.num_units, dims.rows_per_block, 2 * kElementBytes});
  }
  layout.dq_totals = totals.Reserve({pairs, widths.values, kElementBytes});
  layout.pair_totals = totals.Reserve({2, pairs, kElementBytes});
  layout.row_totals = totals.Reserve({dims.rows_per_block, kRowTotalBytes});
  layout.query_columns = worker.Reserve(
      {dims.indexer.head_dim, SaturatingRoundUp(words_of(pairs), Widths::kVector), kElementBytes});
  layout.chunk_panels =
      worker.Reserve({widths.panels, words_of(dims.keys_per_chunk), kElementBytes});
  if (dims.indexer.values_per_word == 2) {
    layout.ds_by_head = worker.Reserve({pairs, dims.score_stride / 2, kElementBytes});
    layout.ds_by_key = worker.Reserve({words_of(pairs), dims.score_stride, kElementBytes});
  }
  layout.dq_sums = worker.Reserve({pairs, widths.values, kElementBytes});
  layout.pair_values = worker.Reserve({2, pairs, kElementBytes});
  Finish(dims, shared, totals, worker, layout);
  return layout;
}

WorkspaceLayout LayOutAttentionL1Norm(const WorkspaceDims& dims) {
  const int64_t pairs = dims.attention.pairs_per_block;
  WorkspaceLayout layout;
  Ledger shared, totals, worker;
  layout.attention = LayOutOperands(dims, dims.attention, shared, worker);
  layout.pair_totals = totals.Reserve({2, pairs, kElementBytes});
  layout.pair_values = worker.Reserve({2, pairs, kElementBytes});
  layout.row_sums = worker.Reserve({dims.rows_per_block, dims.keys_per_chunk, kElementBytes});
  Finish(dims, shared, totals, worker, layout);
  return layout;
}

}  // namespace kindling
