#include "plan/tiling.h"

#include <algorithm>
#include <utility>

#include "base/checked_math.h"

namespace kindling {
namespace {

// The last entry that begins at or before `index`.
int64_t FindOwner(const std::vector<int64_t>& begins, int64_t index) {
  return std::upper_bound(begins.begin(), begins.end(), index) - begins.begin() - 1;
}

}  // namespace

Tiling::Tiling(Problem problem, const TileShape& shape)
    : problem_(std::move(problem)),
      shape_(shape),
      block_begin_(1),
      chunk_begin_(1),
      padded_key_begin_(1) {
  if (problem_.num_rows() == 0) return;  // there may be any number of batches then
  for (std::vector<int64_t>* begins : {&block_begin_, &chunk_begin_, &padded_key_begin_}) {
    begins->resize(problem_.num_batches() + 1);
  }
  for (int64_t batch = 0; batch < problem_.num_batches(); ++batch) {
    const Sequence sequence = problem_.sequence(batch);
    const int64_t num_keys = sequence.num_rows > 0 ? sequence.num_keys : 0;
    block_begin_[batch + 1] =
        block_begin_[batch] + CeilDiv(sequence.num_rows, shape_.rows_per_block);
    chunk_begin_[batch + 1] = chunk_begin_[batch] + CeilDiv(num_keys, shape_.keys_per_chunk);
    padded_key_begin_[batch + 1] = padded_key_begin_[batch] + RoundUp(num_keys, shape_.panel_width);
  }
}

RowBlock Tiling::Block(int64_t block) const {
  RowBlock out;
  out.batch = FindOwner(block_begin_, block);
  out.sequence = problem_.sequence(out.batch);
  out.ticket = block - block_begin_[out.batch];
  const int64_t from_front = block_begin_[out.batch + 1] - block - 1;
  out.row_begin = from_front * shape_.rows_per_block;
  out.row_end = std::min(out.row_begin + shape_.rows_per_block, out.sequence.num_rows);
  return out;
}

KeyChunk Tiling::Chunk(int64_t chunk) const {
  KeyChunk out;
  out.batch = FindOwner(chunk_begin_, chunk);
  out.sequence = problem_.sequence(out.batch);
  out.key_begin = (chunk - chunk_begin_[out.batch]) * shape_.keys_per_chunk;
  out.key_end = std::min(out.key_begin + shape_.keys_per_chunk, out.sequence.num_keys);
  out.padded_keys = RoundUp(out.key_end - out.key_begin, shape_.panel_width);
  out.padded_key_begin = padded_key_begin_[out.batch] + out.key_begin;
  return out;
}

}  // namespace kindling
