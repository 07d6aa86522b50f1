#include "ops/operands.h"

#include <algorithm>

#include "base/checked_math.h"

namespace kindling {

int64_t PadHeads(int64_t num_heads, const KernelTable& kernels, Heads heads) {
  return heads == Heads::kWholeWords ? SaturatingRoundUp(num_heads, kernels.values_per_word)
                                     : num_heads;
}

PackedOperands::PackedOperands(const Operands& operands, const KernelTable& kernel_table,
                               Heads heads)
    : Operands(operands),
      kernels(&kernel_table),
      padded_heads(PadHeads(num_heads, kernel_table, heads)),
      depth_words(CeilDiv(head_dim, kernel_table.values_per_word)),
      row_words(SaturatingRoundUp(depth_words, kVectorFloats)) {}

void PackedOperands::LoadPerHead(const RowBlock& block, std::span<const int64_t> rows,
                                 const RowView& view, float* out) const {
  for (const int64_t row : rows) {
    kernels->load_row(view.At(RowOffset(view, block, row)), DType::kFloat32, view.head_stride,
                      num_heads, out);
    std::fill(out + num_heads, out + padded_heads, 0.0f);
    out += padded_heads;
  }
}

bool PackedOperands::LoadKeys(const KeyChunk& chunk, int64_t key_head, int64_t key_begin,
                              int64_t count, Word* key_rows) const {
  bool finite = true;
  for (int64_t key = key_begin; key < key_begin + count; ++key, key_rows += row_words) {
    const int64_t offset = k.RowOffset(chunk.batch, chunk.sequence.key_begin, key);
    finite &= kernels->load_words(k.At(offset + key_head * k.head_stride), k.dtype,
                                  k.element_stride, head_dim, key_rows);
  }
  return finite;
}

bool PackedOperands::LoadQueries(const RowBlock& block, std::span<const int64_t> rows,
                                 Word* queries) const {
  const auto num_rows = static_cast<int64_t>(rows.size());
  const int64_t group = padded_heads / num_key_heads;
  bool finite = true;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t offset = RowOffset(q, block, rows[row]);
    const auto at = [&](int64_t head) {
      return queries + ((head / group * num_rows + row) * group + head % group) * row_words;
    };
    for (int64_t head = 0; head < num_heads; ++head) {
      finite &= kernels->load_words(q.At(offset + head * q.head_stride), q.dtype, q.element_stride,
                                    head_dim, at(head));
    }
    for (int64_t head = num_heads; head < padded_heads; ++head) {
      std::fill_n(at(head), row_words, 0.0f);
    }
  }
  return finite;
}

void PackedOperands::MultiplyScores(const Word* queries, int64_t num_pairs,
                                    const Word* transposed_keys, int64_t num_keys,
                                    float* scores) const {
  Product product;
  product.a = queries;
  product.a_row_stride = row_words;
  product.b = transposed_keys;
  product.b_panel_stride = depth_words * kernels->panel_width;
  product.b_depth_stride = kernels->panel_width;
  product.c = scores;
  product.c_row_stride = kScoreStride;
  product.num_rows = num_pairs;
  product.num_columns = num_keys;
  product.depth = depth_words;
  kernels->multiply(product);
}

}  // namespace kindling
