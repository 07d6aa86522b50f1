// Lays out the memory that an operator needs beyond its inputs and outputs. One function per
// operator says both how much it is and where everything lies in it.
#ifndef KINDLING_SRC_PLAN_WORKSPACE_H_
#define KINDLING_SRC_PLAN_WORKSPACE_H_

#include <cstdint>

namespace kindling {

// Sizes of one pair of operands, q and k. Counts of pairs are (row, head) pairs of one row block. A
// word is 32 bits.
struct OperandDims {
  int64_t num_key_heads = 1;
  int64_t head_dim = 0;
  int64_t panel_width = 1;
  int64_t values_per_word = 1;
  int64_t pairs_per_block = 0;
  bool packs_keys_once = false;  // keys as rows of B too
};

// Sizes of one call.
struct WorkspaceDims {
  OperandDims indexer;
  OperandDims attention;
  int64_t num_padded_keys = 0;
  int64_t num_chunks = 0;
  int64_t rows_per_block = 0;
  int64_t keys_per_chunk = 0;
  int64_t score_stride = 0;  // floats
  int64_t num_workers = 1;
  int64_t num_split_blocks = 0;  // 0: units are whole blocks
  int64_t num_units = 0;
};

// Offsets are bytes from the start of the workspace, those of a worker from the start of its part:
// worker i's part starts at worker_begin + i * worker_bytes. So do those of totals, with one part
// per worker or, where blocks are split, per block. Every array is 64-byte aligned and of 4-byte
// elements unless said otherwise. What an operator does without has offset 0 and no bytes.
//
// "values" rounds head_dim up to 16, "words" the words of head_dim likewise; "[panels]" stands for
// head_dim rounded up to panel_width.

// What products of one pair of operands need.
struct OperandLayout {
  int64_t transposed_keys = 0;  // shared: [key heads][panels of keys][depth words][panel_width]
  int64_t queries = 0;          // per worker, as what follows: [pairs][words]
  int64_t scores = 0;           // [pairs][score_stride]
  int64_t key_rows = 0;         // [panel_width][words]: keys of a panel while packed
};

struct WorkspaceLayout {
  OperandLayout indexer;
  OperandLayout attention;

  int64_t key_panels = 0;  // where keys are packed once; by chunk: [panels][words of padded keys]
  int64_t dk_sums = 0;     // by chunk: [values][padded keys]
  int64_t chunk_tickets = 0;  // [chunks], one cache line each
  int64_t chunk_finite = 0;   // [chunks], one byte each
  int64_t block_turns = 0;    // [split blocks], one cache line each
  int64_t unit_sums = 0;      // [units][rows] of fp64, where blocks are split

  int64_t totals_begin = 0;
  int64_t totals_bytes = 0;
  int64_t dq_totals = 0;    // [pairs][values]
  int64_t pair_totals = 0;  // [2][pairs]: dw, or max and sum of the teacher's scores
  int64_t row_totals = 0;   // [rows] of 32 bytes: what a row has seen

  int64_t worker_begin = 0;
  int64_t worker_bytes = 0;
  int64_t query_columns = 0;  // [head_dim][words of pairs, rounded up to 16]
  int64_t chunk_panels = 0;   // [panels][words of keys_per_chunk]
  int64_t ds_by_head = 0;     // bf16 only: [pairs][score_stride / 2]
  int64_t ds_by_key = 0;      // bf16 only: [pairs / 2][score_stride]
  int64_t dq_sums = 0;        // [pairs][values]
  int64_t pair_values = 0;    // [2][pairs]: w and dw; or the teacher's lse, or its max and sum
  int64_t row_sums = 0;       // [rows][keys_per_chunk]: the teacher's sums over heads

  int64_t bytes = 0;  // saturates at INT64_MAX
};

WorkspaceLayout LayOutSoftmaxLse(const WorkspaceDims& dims);
WorkspaceLayout LayOutKLLossGrad(const WorkspaceDims& dims);
WorkspaceLayout LayOutAttentionL1Norm(const WorkspaceDims& dims);

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_WORKSPACE_H_
