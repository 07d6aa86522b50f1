// Matrix tiles in standard C++, for processors that lack AMX. Included after avx512.h, before
// kernels_amx_bf16.cc. What the processor answers with a fault ends the program.
#ifndef KINDLING_TESTS_KERNELS_EMULATED_AMX_H_
#define KINDLING_TESTS_KERNELS_EMULATED_AMX_H_

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace kindling::test {

struct EmulatedTile {
  int rows = 0;
  int row_bytes = 0;
  std::array<std::array<uint8_t, 64>, 16> bytes = {};

  template <class Element>
  Element At(int row, int index) const {
    Element element;
    std::memcpy(&element, bytes[row].data() + index * sizeof(Element), sizeof(Element));
    return element;
  }
};

inline thread_local std::array<EmulatedTile, 8> emulated_tiles;

inline EmulatedTile& EmulatedTileAt(int index) {
  EmulatedTile& tile = emulated_tiles.at(index);
  if (tile.rows == 0) std::abort();  // not configured
  return tile;
}

inline void EmulatedTileRelease() { emulated_tiles = {}; }

inline void EmulatedTileLoadconfig(const void* config) {
  std::array<uint8_t, 64> bytes;
  std::memcpy(bytes.data(), config, bytes.size());
  if (bytes[0] != 1 || bytes[1] != 0) std::abort();
  EmulatedTileRelease();
  for (size_t i = 0; i < emulated_tiles.size(); ++i) {
    emulated_tiles[i].rows = bytes[48 + i];
    emulated_tiles[i].row_bytes = bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i];
    const bool empty = emulated_tiles[i].rows == 0;
    if (emulated_tiles[i].rows > 16 || emulated_tiles[i].row_bytes > 64) std::abort();
    if (empty != (emulated_tiles[i].row_bytes == 0)) std::abort();
  }
}

inline void EmulatedTileZero(int index) { EmulatedTileAt(index).bytes = {}; }

inline void EmulatedTileLoadd(int index, const void* base, int64_t stride) {
  EmulatedTile& tile = EmulatedTileAt(index);
  tile.bytes = {};
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.bytes[row].data(), static_cast<const char*>(base) + row * stride,
                tile.row_bytes);
  }
}

inline void EmulatedTileStored(int index, void* base, int64_t stride) {
  const EmulatedTile& tile = EmulatedTileAt(index);
  for (int row = 0; row < tile.rows; ++row) {
    std::memcpy(static_cast<char*>(base) + row * stride, tile.bytes[row].data(), tile.row_bytes);
  }
}

inline float EmulatedFlush(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

// Two chains, one for each half of the words, added to each other and then to the sum.
inline void EmulatedTileDpbf16ps(int into, int left, int right) {
  EmulatedTile& c = EmulatedTileAt(into);
  const EmulatedTile& a = EmulatedTileAt(left);
  const EmulatedTile& b = EmulatedTileAt(right);
  if (a.rows != c.rows || b.row_bytes != c.row_bytes || a.row_bytes != 4 * b.rows) std::abort();
  const auto widened = [](uint16_t half) {
    return EmulatedFlush(std::bit_cast<float>(uint32_t{half} << 16));
  };
  for (int row = 0; row < c.rows; ++row) {
    for (int column = 0; column < c.row_bytes / 4; ++column) {
      float chains[2] = {};
      for (int word = 0; word < b.rows; ++word) {
        for (int half = 0; half < 2; ++half) {
          const float x = widened(a.At<uint16_t>(row, 2 * word + half));
          const float y = widened(b.At<uint16_t>(word, 2 * column + half));
          chains[half] = EmulatedFlush(std::fma(x, y, chains[half]));
        }
      }
      const float sum = EmulatedFlush(EmulatedFlush(c.At<float>(row, column)) +
                                      EmulatedFlush(chains[0] + chains[1]));
      std::memcpy(c.bytes[row].data() + 4 * column, &sum, sizeof(sum));
    }
  }
}

}  // namespace kindling::test

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig kindling::test::EmulatedTileLoadconfig
#define _tile_release kindling::test::EmulatedTileRelease
#define _tile_loadd kindling::test::EmulatedTileLoadd
#define _tile_stored kindling::test::EmulatedTileStored
#define _tile_zero kindling::test::EmulatedTileZero
#define _tile_dpbf16ps kindling::test::EmulatedTileDpbf16ps

#endif  // KINDLING_TESTS_KERNELS_EMULATED_AMX_H_
