// Cuts a ragged batch into the units that operators work on: blocks of consecutive rows of one
// sequence, and chunks of consecutive keys of one sequence.
#ifndef KINDLING_SRC_PLAN_TILING_H_
#define KINDLING_SRC_PLAN_TILING_H_

#include <cstdint>
#include <vector>

#include "base/row_view.h"
#include "kindling/problem.h"

namespace kindling {

// Functions of shape, dtype and instruction set only: they fix the order of every sum.
struct TileShape {
  int64_t rows_per_block = 1;
  int64_t keys_per_chunk = 1;  // a multiple of panel_width
  int64_t panel_width = 1;     // keys are padded to a multiple of it
};

// Rows [row_begin, row_end) of a sequence, by position.
struct RowBlock {
  int64_t batch = 0;
  Sequence sequence;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t ticket = 0;  // place in the order in which the sequence's blocks add to dk

  int64_t num_rows() const { return row_end - row_begin; }
};

// Elements from the start of `view` to the row at `position` of a block's sequence.
inline int64_t RowOffset(const RowView& view, const RowBlock& block, int64_t position) {
  return view.RowOffset(block.batch, block.sequence.storage_row_begin, position);
}

// Keys [key_begin, key_end) of a sequence, counted from its first key.
struct KeyChunk {
  int64_t batch = 0;
  Sequence sequence;
  int64_t key_begin = 0;
  int64_t key_end = 0;
  int64_t padded_keys = 0;       // key_end - key_begin rounded up to panel_width
  int64_t padded_key_begin = 0;  // where the chunk starts among all padded keys
};

// Blocks are numbered sequence by sequence, last rows first: those see most keys when the mask is
// causal, and whoever works on block i waits for earlier ones only. Sequences without rows have
// neither blocks nor chunks.
class Tiling {
 public:
  Tiling(Problem problem, const TileShape& shape);

  int64_t num_blocks() const { return block_begin_.back(); }
  int64_t num_chunks() const { return chunk_begin_.back(); }
  int64_t num_padded_keys() const { return padded_key_begin_.back(); }

  // Requires: 0 <= block < num_blocks().
  RowBlock Block(int64_t block) const;
  // Requires: 0 <= chunk < num_chunks().
  KeyChunk Chunk(int64_t chunk) const;
  // Keys that the last row of a block sees; no other row of it sees more.
  int64_t MostVisibleKeys(const RowBlock& block) const {
    return problem_.NumVisibleKeys(block.sequence, block.row_end - 1);
  }
  // The first chunk of a sequence; its others follow.
  int64_t FirstChunk(int64_t batch) const { return chunk_begin_[batch]; }

 private:
  Problem problem_;
  TileShape shape_;
  // (B+1,) prefix sums, or a single zero where there are no rows at all.
  std::vector<int64_t> block_begin_, chunk_begin_, padded_key_begin_;
};

}  // namespace kindling

#endif  // KINDLING_SRC_PLAN_TILING_H_
