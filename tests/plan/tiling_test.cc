#include "plan/tiling.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "problem/lengths_case.h"
#include "support/random.h"

namespace kindling {
namespace {

using test::Form;
using test::LengthsCase;

Problem Create(const LengthsCase& lengths) { return Problem::Create(lengths.Args()).value(); }

// What is wrong with the blocks of a tiling; empty if nothing is.
std::string BlockFault(const Tiling& tiling, const Problem& problem, const TileShape& shape) {
  int64_t block = 0;
  for (int64_t batch = 0; batch < problem.num_batches(); ++batch) {
    const Sequence sequence = problem.sequence(batch);
    // From the last rows to the first, with no gap and no overlap; only the first block is short.
    int64_t rows_left = sequence.num_rows;
    for (int64_t ticket = 0; rows_left > 0; ++ticket, ++block) {
      const std::string at = " of block " + std::to_string(block);
      if (block >= tiling.num_blocks()) return "too few blocks";
      const RowBlock got = tiling.Block(block);
      if (got.batch != batch) return "batch" + at;
      if (got.sequence.row_begin != sequence.row_begin) return "sequence" + at;
      if (got.ticket != ticket) return "ticket" + at;
      if (got.row_end != rows_left) return "row_end" + at;
      if (got.row_begin < 0 || got.row_begin >= got.row_end) return "row_begin" + at;
      if (got.row_begin % shape.rows_per_block != 0) return "where rows are cut" + at;
      if (got.row_end - got.row_begin > shape.rows_per_block) return "size" + at;
      rows_left = got.row_begin;
    }
  }
  return block == tiling.num_blocks() ? "" : "too many blocks";
}

std::string ChunkFault(const Tiling& tiling, const Problem& problem, const TileShape& shape) {
  int64_t chunk = 0;
  int64_t num_padded_keys = 0;
  for (int64_t batch = 0; batch < problem.num_batches(); ++batch) {
    const Sequence sequence = problem.sequence(batch);
    const int64_t num_keys = sequence.num_rows > 0 ? sequence.num_keys : 0;
    if (problem.num_rows() > 0 && tiling.FirstChunk(batch) != chunk) return "FirstChunk";
    for (int64_t key = 0; key < num_keys; ++chunk) {
      const std::string at = " of chunk " + std::to_string(chunk);
      if (chunk >= tiling.num_chunks()) return "too few chunks";
      const KeyChunk got = tiling.Chunk(chunk);
      if (got.batch != batch) return "batch" + at;
      if (got.sequence.key_begin != sequence.key_begin) return "sequence" + at;
      if (got.key_begin != key) return "key_begin" + at;
      if (got.key_end <= key || got.key_end > num_keys) return "key_end" + at;
      const int64_t size = got.key_end - got.key_begin;
      if (got.key_end < num_keys && size != shape.keys_per_chunk) return "size" + at;
      if (size > shape.keys_per_chunk) return "size" + at;
      if (got.padded_keys < size || got.padded_keys >= size + shape.panel_width ||
          got.padded_keys % shape.panel_width != 0) {
        return "padded_keys" + at;
      }
      if (got.padded_key_begin != num_padded_keys) return "padded_key_begin" + at;
      num_padded_keys += got.padded_keys;
      key = got.key_end;
    }
  }
  if (chunk != tiling.num_chunks()) return "too many chunks";
  return num_padded_keys == tiling.num_padded_keys() ? "" : "num_padded_keys";
}

std::string Fault(const LengthsCase& lengths, const TileShape& shape) {
  const Problem problem = Create(lengths);
  const Tiling tiling(problem, shape);
  const std::string fault = BlockFault(tiling, problem, shape);
  return fault.empty() ? ChunkFault(tiling, problem, shape) : fault;
}

TEST(TilingOf, TwoSequences) {
  // 10 and 3 rows, 9 and 20 keys, with a sequence without rows between them.
  const LengthsCase lengths =
      test::MakeCase(Form::kPackedUsed, Form::kPacked, {10, 0, 3}, {9, 7, 20});
  const Tiling tiling(Create(lengths),
                      {.rows_per_block = 4, .keys_per_chunk = 8, .panel_width = 4});
  ASSERT_EQ(tiling.num_blocks(), 4);
  const int64_t blocks[4][4] = {{0, 8, 10, 0}, {0, 4, 8, 1}, {0, 0, 4, 2}, {2, 0, 3, 0}};
  for (int64_t i = 0; i < 4; ++i) {
    const RowBlock block = tiling.Block(i);
    EXPECT_EQ(block.batch, blocks[i][0]) << i;
    EXPECT_EQ(block.row_begin, blocks[i][1]) << i;
    EXPECT_EQ(block.row_end, blocks[i][2]) << i;
    EXPECT_EQ(block.ticket, blocks[i][3]) << i;
  }
  ASSERT_EQ(tiling.num_chunks(), 5);
  EXPECT_EQ(tiling.num_padded_keys(), 12 + 20);
  const int64_t chunks[5][5] = {
      {0, 0, 8, 8, 0}, {0, 8, 9, 4, 8}, {2, 0, 8, 8, 12}, {2, 8, 16, 8, 20}, {2, 16, 20, 4, 28}};
  for (int64_t i = 0; i < 5; ++i) {
    const KeyChunk chunk = tiling.Chunk(i);
    EXPECT_EQ(chunk.batch, chunks[i][0]) << i;
    EXPECT_EQ(chunk.key_begin, chunks[i][1]) << i;
    EXPECT_EQ(chunk.key_end, chunks[i][2]) << i;
    EXPECT_EQ(chunk.padded_keys, chunks[i][3]) << i;
    EXPECT_EQ(chunk.padded_key_begin, chunks[i][4]) << i;
  }
  EXPECT_EQ(tiling.FirstChunk(0), 0);
  EXPECT_EQ(tiling.FirstChunk(2), 2);
}

TEST(TilingOf, NoRows) {
  for (const LengthsCase& lengths : {test::MakeCase(Form::kPacked, Form::kPacked, {0, 0}, {5, 6}),
                                     test::MakeCase(Form::kPacked, Form::kPacked, {}, {})}) {
    const Tiling tiling(Create(lengths), {.rows_per_block = 4, .keys_per_chunk = 4});
    EXPECT_EQ(tiling.num_blocks(), 0);
    EXPECT_EQ(tiling.num_chunks(), 0);
    EXPECT_EQ(tiling.num_padded_keys(), 0);
  }
}

TEST(TilingOf, RowsWithoutKeys) {
  const LengthsCase lengths = test::MakeCase(Form::kPacked, Form::kPacked, {3, 2}, {0, 0});
  const Tiling tiling(Create(lengths), {.rows_per_block = 2, .keys_per_chunk = 4});
  EXPECT_EQ(tiling.num_blocks(), 3) << "their outputs are written, too";
  EXPECT_EQ(tiling.num_chunks(), 0);
}

TEST(TilingOf, CoversEveryRowAndKeyOnce) {
  test::Random random(test::RunningTest());
  const auto length = [&] {
    return random.Below(4) == 0 ? 0 : static_cast<int32_t>(random.Below(80));
  };
  for (int repeat = 0; repeat < 1000; ++repeat) {
    const auto num_batches = static_cast<size_t>(1 + random.Below(19));
    std::vector<int32_t> num_rows(num_batches), num_keys(num_batches);
    for (int32_t& rows : num_rows) rows = length();
    for (int32_t& keys : num_keys) keys = length();
    constexpr Form kForms[] = {Form::kPacked, Form::kPackedUsed, Form::kPadded};
    const Form form_q = kForms[random.Below(3)];
    const Form form_k = kForms[random.Below(3)];
    TileShape shape;
    shape.rows_per_block = 1 + random.Below(39);
    shape.panel_width = 1 + random.Below(16);
    shape.keys_per_chunk = shape.panel_width * (1 + random.Below(4));
    ASSERT_EQ(Fault(test::MakeCase(form_q, form_k, num_rows, num_keys), shape), "")
        << "repeat " << repeat;
  }
}

TEST(TilingOf, LargeSequences) {
  LengthsCase lengths;
  lengths.layout_q = lengths.layout_k = "BSND";
  lengths.batch_size = 3;
  lengths.max_seqlen_q = 700000000;
  lengths.max_seqlen_k = 2147483647;
  const Tiling tiling(Create(lengths),
                      {.rows_per_block = 1, .keys_per_chunk = 512, .panel_width = 8});
  EXPECT_EQ(tiling.num_blocks(), 2100000000);
  EXPECT_EQ(tiling.num_chunks(), 3 * 4194304);
  EXPECT_EQ(tiling.num_padded_keys(), 3 * int64_t{2147483648});
  EXPECT_EQ(tiling.Block(2099999999).row_begin, 0);
  EXPECT_EQ(tiling.Block(1400000000).row_end, 700000000);
  const KeyChunk last = tiling.Chunk(tiling.num_chunks() - 1);
  EXPECT_EQ(last.key_end, 2147483647);
  EXPECT_EQ(last.padded_key_begin + last.padded_keys, tiling.num_padded_keys());
}

}  // namespace
}  // namespace kindling
