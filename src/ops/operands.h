// q and k of a call as one instruction set multiplies them.
#ifndef KINDLING_SRC_OPS_OPERANDS_H_
#define KINDLING_SRC_OPS_OPERANDS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/kernels.h"
#include "plan/tiling.h"
#include "plan/workspace.h"
#include "problem/operator_call.h"

namespace kindling {

// Rows of floats and of words are padded to a whole vector of any instruction set.
inline constexpr int64_t kVectorFloats = 16;

// Whether every row has as many heads in the operands of products as fill whole words, so that sums
// over (row, head) pairs can be cut between rows. The heads that are added are zeros.
enum class Heads { kAsGiven, kWholeWords };

// Heads of a row in the operands of products; saturates.
int64_t PadHeads(int64_t num_heads, const KernelTable& kernels, Heads heads);

// The typed address of an array in the workspace.
template <class T>
T* ArrayAt(std::byte* base, int64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

// A launch has one for each pair of q and k that it multiplies.
struct PackedOperands : Operands {
  PackedOperands(const Operands& operands, const KernelTable& kernel_table, Heads heads);

  // Whether keys are packed once as rows of B too, rather than anew for every block of rows: where
  // products are so fast that packing shows. Panels of a width that they do not fill would break
  // the bound of the workspace.
  bool packs_keys_once() const {
    return kernels->packs_keys_once && head_dim % kernels->panel_width == 0;
  }

  // Words of packed keys before a chunk.
  int64_t PackedWords(const KeyChunk& chunk) const { return chunk.padded_key_begin * depth_words; }

  // Loads one value per head of some rows of a block, by position, as fp32 [rows][padded_heads].
  void LoadPerHead(const RowBlock& block, std::span<const int64_t> rows, const RowView& view,
                   float* out) const;

  // Reads keys [key_begin, key_begin + count) of a chunk's sequence, one key head, as rows of
  // words. Returns whether all are finite.
  bool LoadKeys(const KeyChunk& chunk, int64_t key_head, int64_t key_begin, int64_t count,
                Word* key_rows) const;

  // Packs the keys of a chunk, one key head, as columns of B, a panel at a time by way of
  // `key_rows`, and calls visit(first key within the chunk, count) after each. Returns whether all
  // are finite.
  template <class Visit>
  bool PackKeys(const KeyChunk& chunk, int64_t key_head, Word* key_rows, Word* transposed,
                Visit visit) const {
    const int64_t step = kernels->panel_width;
    bool finite = true;
    for (int64_t key = chunk.key_begin; key < chunk.key_end; key += step) {
      const int64_t count = step < chunk.key_end - key ? step : chunk.key_end - key;
      finite &= LoadKeys(chunk, key_head, key, count, key_rows);
      kernels->pack_transposed(key_rows, row_words, count, depth_words, transposed);
      transposed += step * depth_words;
      visit(key - chunk.key_begin, count);
    }
    return finite;
  }

  // Loads the queries of some rows of a block, by position, as rows of words, ordered by (key head,
  // row, head within the key head's group). Returns whether all are finite.
  bool LoadQueries(const RowBlock& block, std::span<const int64_t> rows, Word* queries) const;

  // scores[pair][key] of `num_pairs` loaded queries and `num_keys` keys of one packed chunk,
  // kScoreStride apart.
  void MultiplyScores(const Word* queries, int64_t num_pairs, const Word* transposed_keys,
                      int64_t num_keys, float* scores) const;

  const KernelTable* kernels;
  int64_t padded_heads;
  int64_t depth_words;  // of a query or a key
  int64_t row_words;    // room for them
};

// A worker's arrays for one pair of operands.
struct OperandScratch {
  OperandScratch(std::byte* mine, const OperandLayout& layout)
      : queries(ArrayAt<Word>(mine, layout.queries)),
        scores(ArrayAt<float>(mine, layout.scores)),
        key_rows(ArrayAt<Word>(mine, layout.key_rows)) {}
  Word* queries;
  float* scores;
  Word* key_rows;
};

}  // namespace kindling

#endif  // KINDLING_SRC_OPS_OPERANDS_H_
