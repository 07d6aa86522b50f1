// Lays out the memory that an operator needs beyond its inputs and outputs. One function per
// operator says both how much it is and where everything lies in it.
#ifndef KINDLING_SRC_PLAN_WORKSPACE_H_
#define KINDLING_SRC_PLAN_WORKSPACE_H_

#include <cstdint>

namespace kindling {

// Sizes of one call. Counts of pairs are (row, head) pairs of one row block.
struct WorkspaceDims {
  int64_t num_padded_keys = 0;
  int64_t num_chunks = 0;
  int64_t num_key_heads = 1;
  int64_t head_dim = 0;
  int64_t panel_width = 1;
  int64_t pairs_per_block = 0;
  int64_t rows_per_block = 0;
  int64_t keys_per_chunk = 0;
  int64_t score_stride = 0;
  int64_t num_workers = 1;
};

// Offsets are bytes from the start of the workspace, those of a worker from the start of its part:
// worker i's part starts at worker_begin + i * worker_bytes. Every array is 64-byte aligned;
// elements are 4 bytes unless said otherwise. What an operator does without has offset 0 and no
// bytes.
struct WorkspaceLayout {
  int64_t transposed_keys = 0;  // [key heads][panels of keys][head_dim][panel_width]
  int64_t key_panels = 0;       // per chunk: [panels of head_dim][padded keys][panel_width]
  int64_t dk_sums = 0;          // [padded keys][padded head_dim]
  int64_t chunk_tickets = 0;    // [chunks], one cache line each
  int64_t chunk_finite = 0;     // [chunks], one byte each

  int64_t worker_begin = 0;
  int64_t worker_bytes = 0;
  int64_t queries = 0;       // [pairs][padded head_dim]
  int64_t query_panels = 0;  // [panels of head_dim][pairs][panel_width]
  int64_t scores = 0;        // [pairs][score_stride]
  int64_t dq_sums = 0;       // [pairs][padded head_dim]
  int64_t pair_values = 0;   // [2][pairs]: per (row, head): w and dw, or the teacher's lse
  int64_t row_sums = 0;      // [rows][keys_per_chunk]: the teacher's sums over heads
  int64_t key_rows = 0;      // [keys_per_chunk][padded head_dim]: keys of a chunk while packed

  int64_t bytes = 0;  // saturates at INT64_MAX
};

WorkspaceLayout LayOutSoftmaxLse(const WorkspaceDims& dims);
WorkspaceLayout LayOutKLLossGrad(const WorkspaceDims& dims);
WorkspaceLayout LayOutAttentionL1Norm(const WorkspaceDims& dims);

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_WORKSPACE_H_
