// Products of bf16 pairs on AMX tiles.
#ifndef KINDLING_SRC_KERNELS_TILE_PRODUCTS_AMX_H_
#define KINDLING_SRC_KERNELS_TILE_PRODUCTS_AMX_H_

#ifndef KINDLING_EMULATED_AVX512
#include <immintrin.h>
#endif

#include <atomic>
#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/operands_avx512_bf16.h"
#include "kernels/tile_products.h"

namespace kindling {

// Packing is that of the operands: a tile of B is 16 words deep and 16 columns wide, as panels have
// them, and a tile of A is 16 words of 16 rows. Of the 8 tiles, 2 x 2 hold sums, 2 hold rows and 2
// columns: one load for each product of two tiles, 16 cycles.
//
// A sum runs over steps of 16 words, ascending; within a step the low and the high halves of words
// are two chains, added to each other and then to the sum. Rounding is to nearest even whatever the
// floating-point environment says; subnormal numbers count as zero.
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, TDPBF16PS.
template <class ForSet>
struct AmxProducts : ProductKernels<Avx512Bf16Operands<ForSet>> {
  using Vec = Avx512Vec<ForSet>;
  static constexpr int64_t kPanel = ProductKernels<Avx512Bf16Operands<ForSet>>::kPanel;
  static constexpr bool kPacksKeysOnce = true;  // a tenth of the time
  static constexpr int64_t kTile = 16;          // rows of a tile, and words or sums in each
  static constexpr int64_t kWordBytes = sizeof(Word);

  // The operand of LDTILECFG.
  struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t num_rows[16] = {};
  };
  static_assert(sizeof(TileConfig) == 64);

  // The last words of a sum, filled up with zeros to a whole step.
  struct alignas(64) Tail {
    Word a[2 * kTile][kTile];
    Word b[2][kTile][kTile];
  };

  static void Multiply(const Product& product) {
    const int64_t num_whole = product.num_rows / (2 * kTile) * (2 * kTile);
    if (num_whole > 0) {
      Configure(kTile, kTile);
      for (int64_t row = 0; row < num_whole; row += 2 * kTile) {
        MultiplyRows<2>(product, row, 2 * kTile);
      }
    }
    const int64_t rest = product.num_rows - num_whole;
    if (rest > kTile) {
      Configure(kTile, rest - kTile);
      MultiplyRows<2>(product, num_whole, rest);
    } else if (rest > 0) {
      Configure(rest, 0);
      MultiplyRows<1>(product, num_whole, rest);
    }
    _tile_release();  // a thread that is switched away need not save what nobody needs
  }

  // Tiles 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B.
  static void Configure(int64_t upper_rows, int64_t lower_rows) {
    TileConfig config;
    for (const int tile : {0, 1, 4}) config.num_rows[tile] = static_cast<uint8_t>(upper_rows);
    for (const int tile : {2, 3, 5}) config.num_rows[tile] = static_cast<uint8_t>(lower_rows);
    for (const int tile : {6, 7}) config.num_rows[tile] = kTile;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = config.num_rows[tile] > 0 ? kTile * kWordBytes : 0;
    }
    Publish();
    _tile_loadconfig(&config);
  }

  // Makes what was stored before visible to instructions that the compiler takes to read nothing:
  // GCC's tile intrinsics do not say what memory they read.
  static inline void Publish() { std::atomic_signal_fence(std::memory_order_seq_cst); }

  // `num_rows` rows in kTileRows tiles.
  template <int kTileRows>
  static inline void MultiplyRows(const Product& product, int64_t row, int64_t num_rows) {
    Tail tail;
    const int64_t num_tail = product.depth % kTile;
    const Word* a = product.a + row * product.a_row_stride;
    if (num_tail > 0) {
      tail = {};
      CopyTail(a + product.depth - num_tail, product.a_row_stride, num_rows, num_tail, tail.a[0]);
    }
    for (int64_t column = 0; column < product.num_columns; column += 2 * kTile) {
      const Word* b = product.b + column / kPanel * product.b_panel_stride + column % kPanel;
      float* c = product.c + row * product.c_row_stride + column;
      if (product.num_columns - column > kTile) {
        MultiplyTiles<kTileRows, 2>(product, a, b, c, tail);
      } else {
        MultiplyTiles<kTileRows, 1>(product, a, b, c, tail);
      }
    }
  }

  // kTileRows x kTileColumns tiles of C.
  template <int kTileRows, int kTileColumns>
  static inline void MultiplyTiles(const Product& product, const Word* a, const Word* b, float* c,
                                   Tail& tail) {
    const int64_t c_bytes = product.c_row_stride * kWordBytes;
    float* lower = c + kTile * product.c_row_stride;
    if (product.accumulate) {
      _tile_loadd(0, c, c_bytes);
      if constexpr (kTileColumns == 2) _tile_loadd(1, c + kTile, c_bytes);
      if constexpr (kTileRows == 2) _tile_loadd(2, lower, c_bytes);
      if constexpr (kTileRows == 2 && kTileColumns == 2) _tile_loadd(3, lower + kTile, c_bytes);
    } else {
      _tile_zero(0);
      if constexpr (kTileColumns == 2) _tile_zero(1);
      if constexpr (kTileRows == 2) _tile_zero(2);
      if constexpr (kTileRows == 2 && kTileColumns == 2) _tile_zero(3);
    }
    int64_t k = 0;
    for (; k + kTile <= product.depth; k += kTile) {
      const Word* b_step = b + k * product.b_depth_stride;
      Step<kTileRows, kTileColumns>(a + k, product.a_row_stride, b_step, b_step + kTile,
                                    product.b_depth_stride);
    }
    if (k < product.depth) {
      for (int column = 0; column < kTileColumns; ++column) {
        CopyTail(b + k * product.b_depth_stride + column * kTile, product.b_depth_stride,
                 product.depth - k, kTile, tail.b[column][0]);
      }
      Publish();
      Step<kTileRows, kTileColumns>(tail.a[0], kTile, tail.b[0][0], tail.b[1][0], kTile);
    }
    _tile_stored(0, c, c_bytes);
    if constexpr (kTileColumns == 2) _tile_stored(1, c + kTile, c_bytes);
    if constexpr (kTileRows == 2) _tile_stored(2, lower, c_bytes);
    if constexpr (kTileRows == 2 && kTileColumns == 2) _tile_stored(3, lower + kTile, c_bytes);
  }

  // All products of one step. `left` and `right` are the columns of B.
  template <int kTileRows, int kTileColumns>
  static inline void Step(const Word* a, int64_t a_stride, const Word* left, const Word* right,
                          int64_t b_stride) {
    const int64_t a_bytes = a_stride * kWordBytes;
    const int64_t b_bytes = b_stride * kWordBytes;
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, left, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kTileColumns == 2) {
      _tile_loadd(7, right, b_bytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTileRows == 2) {
      _tile_loadd(5, a + kTile * a_stride, a_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kTileColumns == 2) _tile_dpbf16ps(3, 5, 7);
    }
  }

  // Up to kTile words of some rows; the rest of a row stays zero.
  static inline void CopyTail(const Word* rows, int64_t row_stride, int64_t num_rows,
                              int64_t num_words, Word* out) {
    for (int64_t row = 0; row < num_rows; ++row, rows += row_stride, out += kTile) {
      for (int64_t i = 0; i < num_words; ++i) out[i] = rows[i];
    }
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_TILE_PRODUCTS_AMX_H_
