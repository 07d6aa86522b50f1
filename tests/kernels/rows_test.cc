// Loading, storing and packing rows: exact, to the last element and no further.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/kernel_test.h"
#include "support/owned_tensor.h"

namespace kindling::test {
namespace {

// A 16-bit floating format, and its numbers by their definition.
struct Format {
  DType dtype;
  int exponent_bits;
  int fraction_bits;

  bool IsNan(uint16_t bits) const {
    return (bits & 0x7fff) > (((1 << exponent_bits) - 1) << fraction_bits);
  }
  double Value(uint16_t bits) const {
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits & 0x7fff) >> fraction_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
    return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }
};

constexpr Format kFormats[] = {{DType::kBFloat16, 8, 7}, {DType::kFloat16, 5, 10}};

std::vector<uint16_t> AllPatterns() {
  std::vector<uint16_t> patterns(1 << 16);
  std::iota(patterns.begin(), patterns.end(), uint16_t{0});
  return patterns;
}

class Rows : public KernelTest {
 protected:
  // The rounding of one number.
  uint16_t Store(float value, DType dtype) const {
    uint16_t out = 0;
    kernels_.store_row(&value, 1, dtype, &out);
    return out;
  }
};

TEST_P(Rows, LoadIsExactForEveryPattern) {
  const std::vector<uint16_t> patterns = AllPatterns();
  for (const Format& format : kFormats) {
    std::vector<float> wide(patterns.size());
    EXPECT_FALSE(kernels_.load_row(patterns.data(), format.dtype, 1, 1 << 16, wide.data()));
    for (const uint16_t bits : patterns) {
      if (format.IsNan(bits)) {
        ASSERT_TRUE(std::isnan(wide[bits])) << bits;
      } else {
        ASSERT_EQ(wide[bits], format.Value(bits)) << bits;
        ASSERT_EQ(std::signbit(wide[bits]), (bits & 0x8000) != 0) << bits;
      }
    }
  }
}

TEST_P(Rows, LoadIsExactForEveryPatternAtAnyStride) {
  const std::vector<uint16_t> patterns = AllPatterns();
  for (const Format& format : kFormats) {
    std::vector<float> dense(patterns.size());
    kernels_.load_row(patterns.data(), format.dtype, 1, 1 << 16, dense.data());
    for (const int64_t stride : {2, 3, 17, -1, -4}) {
      const int64_t step = std::abs(stride);
      const int64_t first = stride < 0 ? ((1 << 16) - 1) * step : 0;
      std::vector<uint16_t> spread(patterns.size() * step, 0xffff);
      for (int64_t i = 0; i < 1 << 16; ++i) spread[first + i * stride] = patterns[i];
      std::vector<float> wide(patterns.size());
      kernels_.load_row(spread.data() + first, format.dtype, stride, 1 << 16, wide.data());
      for (const uint16_t bits : patterns) {
        ASSERT_EQ(BitsOf(wide[bits]), BitsOf(dense[bits])) << bits << ", stride " << stride;
      }
    }
    // Stride 0 repeats one element.
    float same[21];
    EXPECT_TRUE(kernels_.load_row(&patterns[0x3c01], format.dtype, 0, 21, same));
    for (const float value : same) EXPECT_EQ(value, format.Value(0x3c01));
  }
}

TEST_P(Rows, LoadSaysWhetherAllIsFinite) {
  const std::vector<uint16_t> patterns = AllPatterns();
  for (const Format& format : kFormats) {
    for (const uint16_t bits : patterns) {
      float wide;
      const bool finite = kernels_.load_row(&patterns[bits], format.dtype, 1, 1, &wide);
      ASSERT_EQ(finite, std::isfinite(wide)) << bits;
    }
  }
}

TEST_P(Rows, LoadFindsTheNonFiniteElementAnywhere) {
  for (int64_t count = 1; count <= kMaxTail; ++count) {
    for (const int64_t stride : {1, 3}) {
      std::vector<float> row(count * stride, kNanF);
      for (int64_t i = 0; i < count; ++i) row[i * stride] = std::numeric_limits<float>::max();
      std::vector<float> out(count);
      EXPECT_TRUE(kernels_.load_row(row.data(), DType::kFloat32, stride, count, out.data()));
      for (int64_t bad = 0; bad < count; ++bad) {
        for (const float poison : {kNanF, kInfF, -kInfF}) {
          std::vector<float> poisoned = row;
          poisoned[bad * stride] = poison;
          EXPECT_FALSE(
              kernels_.load_row(poisoned.data(), DType::kFloat32, stride, count, out.data()));
        }
      }
    }
  }
}

TEST_P(Rows, LoadFindsTheNonFiniteHalfAnywhere) {
  for (const Format& format : kFormats) {
    const auto infinity =
        static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.fraction_bits);
    for (int64_t count = 1; count <= kMaxTail; ++count) {
      for (const int64_t stride : {1, 3}) {
        std::vector<uint16_t> row(count * stride, 0xffff);  // a NaN between the elements
        for (int64_t i = 0; i < count; ++i) row[i * stride] = infinity - 1;
        std::vector<float> out(count);
        EXPECT_TRUE(kernels_.load_row(row.data(), format.dtype, stride, count, out.data()));
        for (int64_t bad = 0; bad < count; ++bad) {
          std::vector<uint16_t> poisoned = row;
          for (const int bits : {infinity + 0, infinity | 0x8000, infinity + 1, 0xffff}) {
            poisoned[bad * stride] = static_cast<uint16_t>(bits);
            ASSERT_FALSE(
                kernels_.load_row(poisoned.data(), format.dtype, stride, count, out.data()))
                << count << ", " << bad;
          }
        }
      }
    }
  }
}

// Inputs may end at the end of a page, outputs begin where others end.
TEST_P(Rows, LoadTouchesItsElementsOnly) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int64_t count = 0; count <= kMaxTail; ++count) {
      for (const int64_t stride : {1, 2, -1, 5}) {
        const int64_t span = std::max<int64_t>(count - 1, 0) * std::abs(stride) + 1;
        OwnedTensor row(dtype, {span});  // whose guards are NaN
        OwnedTensor out(DType::kFloat32, {count});
        for (int64_t i = 0; i < span; ++i) row.Set(i, static_cast<double>(i + 1));
        const int64_t first = stride < 0 ? span - 1 : 0;
        const auto* data = static_cast<const std::byte*>(row.view().data) +
                           first * (dtype == DType::kFloat32 ? 4 : 2);
        EXPECT_TRUE(
            kernels_.load_row(data, dtype, stride, count, static_cast<float*>(out.view().data)));
        EXPECT_TRUE(out.GuardsIntact()) << count;
        for (int64_t i = 0; i < count; ++i) {
          EXPECT_EQ(out.Get(i), static_cast<double>(first + i * stride + 1));
        }
      }
    }
  }
}

TEST_P(Rows, StoreTouchesItsElementsOnly) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int64_t count = 0; count <= kMaxTail; ++count) {
      OwnedTensor row(DType::kFloat32, {count});
      OwnedTensor out(dtype, {count});
      for (int64_t i = 0; i < count; ++i) row.Set(i, static_cast<double>(i - 7));
      kernels_.store_row(static_cast<const float*>(row.view().data), count, dtype, out.view().data);
      EXPECT_TRUE(out.GuardsIntact()) << count;
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(out.Get(i), static_cast<double>(i - 7));
    }
  }
}

TEST_P(Rows, StoreReturnsWhatWasLoaded) {
  const std::vector<uint16_t> patterns = AllPatterns();
  for (const Format& format : kFormats) {
    std::vector<float> wide(patterns.size());
    std::vector<uint16_t> narrow(patterns.size());
    kernels_.load_row(patterns.data(), format.dtype, 1, 1 << 16, wide.data());
    kernels_.store_row(wide.data(), 1 << 16, format.dtype, narrow.data());
    for (const uint16_t bits : patterns) {
      if (format.IsNan(bits)) {
        ASSERT_TRUE(format.IsNan(narrow[bits])) << bits;
      } else {
        ASSERT_EQ(narrow[bits], bits);
      }
    }
  }
}

// Between two neighbours: the nearer one; halfway: the even one.
TEST_P(Rows, StoreRoundsToNearestEven) {
  for (const Format& format : kFormats) {
    const int infinity = ((1 << format.exponent_bits) - 1) << format.fraction_bits;
    for (int bits = 0; bits + 1 < infinity; ++bits) {
      const auto low = static_cast<uint16_t>(bits);
      const auto high = static_cast<uint16_t>(bits + 1);
      // 17 more fraction bits than the format's own: exact in fp32, subnormal neighbours of bf16
      // too.
      const auto middle = static_cast<float>((format.Value(low) + format.Value(high)) / 2);
      const uint16_t even = low % 2 == 0 ? low : high;
      ASSERT_EQ(Store(middle, format.dtype), even) << bits;
      ASSERT_EQ(Store(std::nextafter(middle, 0.0f), format.dtype), low) << bits;
      ASSERT_EQ(Store(std::nextafter(middle, kInfF), format.dtype), high) << bits;
      ASSERT_EQ(Store(-middle, format.dtype), even | 0x8000) << bits;
    }
  }
}

TEST_P(Rows, StoreOverflowsToInfinity) {
  for (const Format& format : kFormats) {
    const auto infinity =
        static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.fraction_bits);
    const auto largest = static_cast<uint16_t>(infinity - 1);
    // Half a unit above the largest number is where rounding goes up.
    const double unit = format.Value(largest) - format.Value(static_cast<uint16_t>(largest - 1));
    const auto limit = static_cast<float>(format.Value(largest) + unit / 2);
    EXPECT_EQ(Store(std::nextafter(limit, 0.0f), format.dtype), largest);
    EXPECT_EQ(Store(limit, format.dtype), infinity);
    EXPECT_EQ(Store(-limit, format.dtype), infinity | 0x8000);
    EXPECT_EQ(Store(std::numeric_limits<float>::max(), format.dtype), infinity);
    EXPECT_EQ(Store(kInfF, format.dtype), infinity);
    EXPECT_TRUE(format.IsNan(Store(kNanF, format.dtype)));
    // A NaN whose payload the narrow format would cut off stays one.
    EXPECT_TRUE(format.IsNan(Store(std::bit_cast<float>(0x7f800001u), format.dtype)));
  }
}

TEST_P(Rows, PackTransposed) {
  const int64_t panel = kernels_.panel_width;
  for (int64_t num_rows = 1; num_rows <= 2 * panel + 1; ++num_rows) {
    for (const int64_t width : {1, 3, 8, 37}) {
      const int64_t stride = width + 2;
      const std::vector<float> rows = Buffer(num_rows * stride);
      const int64_t padded = (num_rows + panel - 1) / panel * panel;
      std::vector<float> panels(padded * width + 1, 99.0f);
      kernels_.pack_transposed(rows.data(), stride, num_rows, width, panels.data());
      for (int64_t row = 0; row < padded; ++row) {
        for (int64_t i = 0; i < width; ++i) {
          const float want = row < num_rows ? rows[row * stride + i] : 0.0f;
          ASSERT_EQ(panels[(row / panel * width + i) * panel + row % panel], want);
        }
      }
      EXPECT_EQ(panels.back(), 99.0f) << "written behind the last panel";
    }
  }
}

TEST_P(Rows, PackPanels) {
  const int64_t panel = kernels_.panel_width;
  for (int64_t width = 1; width <= 2 * panel + 1; ++width) {
    constexpr int64_t kRows = 3;
    const int64_t stride = width + 1;
    const int64_t panel_stride = kRows * panel + 5;
    const int64_t num_panels = (width + panel - 1) / panel;
    const std::vector<float> rows = Buffer(kRows * stride);
    std::vector<float> panels(num_panels * panel_stride, 99.0f);
    kernels_.pack_panels(rows.data(), stride, kRows, width, panels.data(), panel_stride);
    for (int64_t at = 0; at < num_panels * panel_stride; ++at) {
      const int64_t row = at % panel_stride / panel;
      const int64_t column = at / panel_stride * panel + at % panel_stride % panel;
      const float want = row >= kRows     ? 99.0f  // between panels
                         : column < width ? rows[row * stride + column]
                                          : 0.0f;
      ASSERT_EQ(panels[at], want) << "width " << width << ", at " << at;
    }
  }
}

TEST_P(Rows, PackColumns) {
  const int64_t panel = kernels_.panel_width;
  for (int64_t num_rows = 1; num_rows <= kMaxTail; ++num_rows) {
    for (const int64_t width : {int64_t{1}, int64_t{3}, int64_t{37}, panel, 2 * panel + 5}) {
      const int64_t stride = width + 2;
      const int64_t out_stride = (num_rows + 15) / 16 * 16 + 16;
      const std::vector<float> rows = Buffer(num_rows * stride);
      std::vector<float> out(width * out_stride, 99.0f);
      kernels_.pack_columns(rows.data(), stride, num_rows, width, out.data(), out_stride);
      for (int64_t value = 0; value < width; ++value) {
        for (int64_t row = 0; row < num_rows; ++row) {
          ASSERT_EQ(out[value * out_stride + row], rows[row * stride + value]) << num_rows;
        }
        ASSERT_EQ(out[(value + 1) * out_stride - 16], 99.0f) << "written behind the last vector";
      }
    }
  }
}

TEST_P(Rows, Transpose) {
  for (int64_t num_rows = 1; num_rows <= kMaxTail; ++num_rows) {
    for (int64_t num_columns = 1; num_columns <= kMaxTail; ++num_columns) {
      const int64_t stride = num_columns + 3;
      const int64_t out_stride = (num_rows + 15) / 16 * 16 + 1;
      const std::vector<float> in = Buffer(num_rows * stride);
      std::vector<float> out(num_columns * out_stride, 99.0f);
      kernels_.transpose(in.data(), stride, num_rows, num_columns, out.data(), out_stride);
      for (int64_t column = 0; column < num_columns; ++column) {
        for (int64_t row = 0; row < num_rows; ++row) {
          ASSERT_EQ(out[column * out_stride + row], in[row * stride + column]);
        }
        ASSERT_EQ(out[(column + 1) * out_stride - 1], 99.0f) << "written behind the last vector";
      }
    }
  }
}

KINDLING_FOR_EVERY_ISA(Rows);

}  // namespace
}  // namespace kindling::test
