// Packing and multiplying, once for all instruction sets and both kinds of words. `Operands` says
// what a word is and how two of them multiply (contract in operands_fp32.h). Included like
// tile_rows.h.
#ifndef KINDLING_SRC_KERNELS_TILE_PRODUCTS_H_
#define KINDLING_SRC_KERNELS_TILE_PRODUCTS_H_

#include <cstdint>

#include "kernels/kernels.h"

namespace kindling {

// Unrolls the loop that follows, so that an array indexed by it can live in registers.
#define KINDLING_UNROLL _Pragma("GCC unroll 16")

template <class Operands>
struct ProductKernels {
  using Vec = typename Operands::Vec;
  using Float = typename Vec::Float;
  static constexpr int64_t kLanes = Vec::kLanes;
  static constexpr int kVectors = Vec::kPanelVectors;
  static constexpr int64_t kPanel = kVectors * kLanes;
  static constexpr bool kPacksKeysOnce =
      false;  // a percent of the time for a third of the workspace

  // ---- Packing ----

  static void PackTransposed(const Word* rows, int64_t row_stride, int64_t num_rows,
                             int64_t num_words, Word* panels) {
    for (int64_t row = 0; row < num_rows; row += kPanel) {
      for (int64_t part = 0; part < kPanel; part += kLanes) {
        TransposeRows(rows + (row + part) * row_stride, row_stride, num_rows - row - part,
                      num_words, panels + row * num_words + part, kPanel);
      }
    }
  }

  static void Transpose(const float* in, int64_t in_stride, int64_t num_rows, int64_t num_columns,
                        float* out, int64_t out_stride) {
    for (int64_t row = 0; row < num_rows; row += kLanes) {
      TransposeRows(in + row * in_stride, in_stride, num_rows - row, num_columns, out + row,
                    out_stride);
    }
  }

  static void PackColumns(const Word* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                          Word* out, int64_t out_stride) {
    constexpr int64_t kRows = kLanes * Operands::kValuesPerWord;
    Word joined[kLanes * kPanel];
    for (int64_t row = 0; row < num_rows; row += kRows) {
      const int64_t end = num_rows - row < kRows ? num_rows - row : kRows;
      for (int64_t column = 0; column < width; column += kPanel) {
        const int64_t some = width - column < kPanel ? width - column : kPanel;
        PackPanel(rows + row * row_stride, row_stride, end, column, some, joined);
        TransposeRows(joined, kPanel,
                      (end + Operands::kValuesPerWord - 1) / Operands::kValuesPerWord, some,
                      out + column * out_stride + row / Operands::kValuesPerWord, out_stride);
      }
    }
  }

  // Columns of words `out_stride` apart from up to kLanes rows, zeros where there are fewer.
  static inline void TransposeRows(const Word* rows, int64_t row_stride, int64_t num_rows,
                                   int64_t num_words, Word* out, int64_t out_stride) {
    int64_t i = 0;
    for (; i + kLanes <= num_words; i += kLanes) {
      Float block[kLanes];
      for (int64_t row = 0; row < kLanes; ++row) {
        block[row] = row < num_rows ? Vec::Load(rows + row * row_stride + i) : Vec::Set(0.0f);
      }
      Vec::Transpose(block);
      for (int64_t word = 0; word < kLanes; ++word) {
        Vec::Store(out + (i + word) * out_stride, block[word]);
      }
    }
    for (; i < num_words; ++i) {
      for (int64_t row = 0; row < kLanes; ++row) {
        out[i * out_stride + row] = row < num_rows ? rows[row * row_stride + i] : 0.0f;
      }
    }
  }

  static void PackPanels(const Word* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                         Word* panels, int64_t panel_stride) {
    for (int64_t column = 0; column < width; column += kPanel) {
      const int64_t some = width - column < kPanel ? width - column : kPanel;
      PackPanel(rows, row_stride, num_rows, column, some, panels + column / kPanel * panel_stride);
    }
  }

  // One panel: columns [column, column + count), then zeros.
  static inline void PackPanel(const Word* rows, int64_t row_stride, int64_t num_rows,
                               int64_t column, int64_t count, Word* to) {
    for (int64_t row = 0; row < num_rows; row += Operands::kValuesPerWord) {
      Operands::JoinRows(rows + row * row_stride, row_stride, num_rows - row, column, count, kPanel,
                         to);
      to += kPanel;
    }
  }

  // ---- Products ----

  // Calls function.operator()<n>() for n in [1, kMost].
  template <int kMost, class Function>
  static inline void WithCount(int64_t n, Function function) {
    if constexpr (kMost > 0) {
      if (n == kMost) {
        function.template operator()<kMost>();
      } else {
        WithCount<kMost - 1>(n, function);
      }
    }
  }

  // kRows rows x kColumns vectors. Each sum runs over k ascending in a register of its own.
  template <int kRows, int kColumns>
  static inline void Tile(const Product& product, const Word* a, const Word* b, float* c) {
    Float sum[kRows][kColumns];
    KINDLING_UNROLL
    for (int row = 0; row < kRows; ++row) {
      KINDLING_UNROLL
      for (int column = 0; column < kColumns; ++column) sum[row][column] = Vec::Set(0.0f);
    }
    const int64_t a_stride = product.a_row_stride;
    const int64_t b_stride = product.b_depth_stride;
    for (int64_t k = 0; k < product.depth; ++k) {
      Float bs[kColumns];
      KINDLING_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        bs[column] = Vec::Load(b + k * b_stride + column * kLanes);
      }
      KINDLING_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const Float x = Vec::Set(a[row * a_stride + k]);
        KINDLING_UNROLL
        for (int column = 0; column < kColumns; ++column) {
          sum[row][column] = Operands::MulAdd(x, bs[column], sum[row][column]);
        }
      }
    }
    KINDLING_UNROLL
    for (int row = 0; row < kRows; ++row) {
      KINDLING_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        float* out = c + row * product.c_row_stride + column * kLanes;
        if (product.accumulate) sum[row][column] = Vec::Add(Vec::Load(out), sum[row][column]);
        Vec::Store(out, sum[row][column]);
      }
    }
  }

  // All rows x kColumns vectors of one panel.
  template <int kColumns>
  static inline void MultiplyPanel(const Product& product, const Word* b, float* c) {
    constexpr int kRows = Vec::kTileRows;
    const Word* a = product.a;
    const auto tile = [&]<int kCount>() { Tile<kCount, kColumns>(product, a, b, c); };
    int64_t row = 0;
    for (; row + kRows <= product.num_rows; row += kRows) {
      tile.template operator()<kRows>();
      a += kRows * product.a_row_stride;
      c += kRows * product.c_row_stride;
    }
    WithCount<kRows - 1>(product.num_rows - row, tile);
  }

  static void Multiply(const Product& product) {
    const Word* b = product.b;
    int64_t column = 0;
    for (; column + kPanel <= product.num_columns; column += kPanel) {
      MultiplyPanel<kVectors>(product, b, product.c + column);
      b += product.b_panel_stride;
    }
    const int64_t vectors_left = (product.num_columns - column + kLanes - 1) / kLanes;
    WithCount<kVectors>(vectors_left, [&]<int kColumns>() {
      MultiplyPanel<kColumns>(product, b, product.c + column);
    });
  }
};

#undef KINDLING_UNROLL

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_TILE_PRODUCTS_H_
