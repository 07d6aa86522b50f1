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

  // ---- Packing ----

  static void PackTransposed(const Word* rows, int64_t row_stride, int64_t num_rows,
                             int64_t num_words, Word* panels) {
    for (int64_t row = 0; row < num_rows; row += kPanel) {
      for (int64_t part = 0; part < kPanel; part += kLanes) {
        const int64_t some = num_rows - row - part < kLanes ? num_rows - row - part : kLanes;
        TransposeRows(rows + (row + part) * row_stride, row_stride, some, num_words,
                      panels + row * num_words + part);
      }
    }
  }

  // kLanes columns of a panel from `num_rows` rows, zeros where there are fewer.
  static inline void TransposeRows(const Word* rows, int64_t row_stride, int64_t num_rows,
                                   int64_t num_words, Word* out) {
    int64_t i = 0;
    for (; i + kLanes <= num_words; i += kLanes) {
      Float block[kLanes];
      for (int64_t row = 0; row < kLanes; ++row) {
        block[row] = row < num_rows ? Vec::Load(rows + row * row_stride + i) : Vec::Set(0.0f);
      }
      Vec::Transpose(block);
      for (int64_t word = 0; word < kLanes; ++word) {
        Vec::Store(out + (i + word) * kPanel, block[word]);
      }
    }
    for (; i < num_words; ++i) {
      for (int64_t row = 0; row < kLanes; ++row) {
        out[i * kPanel + row] = row < num_rows ? rows[row * row_stride + i] : 0.0f;
      }
    }
  }

  static void PackPanels(const Word* rows, int64_t row_stride, int64_t num_rows, int64_t width,
                         Word* panels, int64_t panel_stride) {
    for (int64_t column = 0; column < width; column += kPanel) {
      Word* to = panels + column / kPanel * panel_stride;
      const int64_t some = width - column < kPanel ? width - column : kPanel;
      for (int64_t row = 0; row < num_rows; row += Operands::kValuesPerWord) {
        Operands::JoinRows(rows + row * row_stride, row_stride, num_rows - row, column, some,
                           kPanel, to);
        to += kPanel;
      }
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
  template <int kRows, int kColumns, bool kRowsContiguous>
  static inline void Tile(const Word* a, int64_t a_stride, const Word* b, int64_t depth, float* c,
                          int64_t c_row_stride, bool accumulate) {
    Float sum[kRows][kColumns];
    KINDLING_UNROLL
    for (int row = 0; row < kRows; ++row) {
      KINDLING_UNROLL
      for (int column = 0; column < kColumns; ++column) sum[row][column] = Vec::Set(0.0f);
    }
    for (int64_t k = 0; k < depth; ++k) {
      Float bs[kColumns];
      KINDLING_UNROLL
      for (int column = 0; column < kColumns; ++column) {
        bs[column] = Vec::Load(b + k * kPanel + column * kLanes);
      }
      KINDLING_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const Float x = Vec::Set(kRowsContiguous ? a[k * a_stride + row] : a[row * a_stride + k]);
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
        float* out = c + row * c_row_stride + column * kLanes;
        if (accumulate) sum[row][column] = Vec::Add(Vec::Load(out), sum[row][column]);
        Vec::Store(out, sum[row][column]);
      }
    }
  }

  // All rows x kColumns vectors of one panel.
  template <int kColumns, bool kRowsContiguous>
  static inline void MultiplyPanel(const Product& product, const Word* b, float* c) {
    constexpr int kRows = Vec::kTileRows;
    const int64_t a_stride = kRowsContiguous ? product.a_depth_stride : product.a_row_stride;
    const int64_t row_step = kRowsContiguous ? 1 : a_stride;
    const Word* a = product.a;
    const auto tile = [&]<int kCount>() {
      Tile<kCount, kColumns, kRowsContiguous>(a, a_stride, b, product.depth, c,
                                              product.c_row_stride, product.accumulate);
    };
    int64_t row = 0;
    for (; row + kRows <= product.num_rows; row += kRows) {
      tile.template operator()<kRows>();
      a += kRows * row_step;
      c += kRows * product.c_row_stride;
    }
    WithCount<kRows - 1>(product.num_rows - row, tile);
  }

  template <bool kRowsContiguous>
  static inline void MultiplyPanels(const Product& product) {
    const Word* b = product.b;
    int64_t column = 0;
    for (; column + kPanel <= product.num_columns; column += kPanel) {
      MultiplyPanel<kVectors, kRowsContiguous>(product, b, product.c + column);
      b += product.b_panel_stride;
    }
    const int64_t vectors_left = (product.num_columns - column + kLanes - 1) / kLanes;
    WithCount<kVectors>(vectors_left, [&]<int kColumns>() {
      MultiplyPanel<kColumns, kRowsContiguous>(product, b, product.c + column);
    });
  }

  static void Multiply(const Product& product) {
    if (product.a_row_stride == 1) {
      MultiplyPanels<true>(product);
    } else {
      MultiplyPanels<false>(product);
    }
  }
};

#undef KINDLING_UNROLL

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_TILE_PRODUCTS_H_
