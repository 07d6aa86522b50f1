#include "base/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kindling {
namespace {

struct Fp16 {
  static constexpr int kExponentBits = 5;
  static constexpr int kFractionBits = 10;
  static float Decode(uint16_t bits) { return Fp32FromFp16(bits); }
  static uint16_t Encode(float value) { return Fp16FromFp32(value); }
};

struct Bf16 {
  static constexpr int kExponentBits = 8;
  static constexpr int kFractionBits = 7;
  static float Decode(uint16_t bits) { return Fp32FromBf16(bits); }
  static uint16_t Encode(float value) { return Bf16FromFp32(value); }
};

// The IEEE 754 format with Format's widths, worked out with powers of two in double.
template <class Format>
struct Ieee {
  static constexpr int kMaxExponentField = (1 << Format::kExponentBits) - 1;
  static constexpr int kBias = kMaxExponentField / 2;
  static constexpr int kMinExponent = 1 - kBias;
  static constexpr uint16_t kInfinity = kMaxExponentField << Format::kFractionBits;

  static bool IsNan(uint16_t bits) { return (bits & 0x7fff) > kInfinity; }

  // Requires: not a NaN. Infinity reads as the number that would come after the largest.
  static double Magnitude(uint16_t bits) {
    const int field = (bits & 0x7fff) >> Format::kFractionBits;
    const int fraction = bits & ((1 << Format::kFractionBits) - 1);
    const int hidden = field > 0 ? 1 << Format::kFractionBits : 0;
    return std::ldexp(fraction + hidden, std::max(field, 1) - kBias - Format::kFractionBits);
  }

  // Nearest value of the format, ties to even, by rounding to a multiple of the local ulp.
  static double Round(double value) {
    if (value == 0 || std::isinf(value)) return value;
    const int exponent = std::max(std::ilogb(value), kMinExponent);
    const double ulp = std::ldexp(1.0, exponent - Format::kFractionBits);
    const double rounded = std::nearbyint(value / ulp) * ulp;
    const double overflow = Magnitude(kInfinity);
    return std::abs(rounded) >= overflow ? std::copysign(INFINITY, value) : rounded;
  }
};

template <class Format>
class Float16 : public ::testing::Test {};
using Formats = ::testing::Types<Fp16, Bf16>;
TYPED_TEST_SUITE(Float16, Formats);

TYPED_TEST(Float16, DecodesEveryPattern) {
  using Oracle = Ieee<TypeParam>;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = TypeParam::Decode(bits);
    ASSERT_EQ(std::signbit(value), bits >= 0x8000) << std::hex << bits;
    if (Oracle::IsNan(bits)) {
      ASSERT_TRUE(std::isnan(value)) << std::hex << bits;
    } else if ((bits & 0x7fff) == Oracle::kInfinity) {
      ASSERT_TRUE(std::isinf(value)) << std::hex << bits;
    } else {
      ASSERT_EQ(std::abs(value), Oracle::Magnitude(bits)) << std::hex << bits;
    }
  }
}

TYPED_TEST(Float16, RoundTripsEveryPattern) {
  using Oracle = Ieee<TypeParam>;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t back = TypeParam::Encode(TypeParam::Decode(bits));
    if (Oracle::IsNan(bits)) {
      ASSERT_TRUE(Oracle::IsNan(back)) << std::hex << bits << " became " << back;
      ASSERT_EQ(back & 0x8000u, bits & 0x8000u) << std::hex << bits;
    } else {
      ASSERT_EQ(back, bits) << std::hex << bits;
    }
  }
}

// Between every two neighbours, infinity taken as the one after the largest: the midpoint goes to
// the even one, the floats on either side of it to the nearer one.
TYPED_TEST(Float16, BreaksEveryTieToEven) {
  using Oracle = Ieee<TypeParam>;
  for (uint16_t low = 0; low < Oracle::kInfinity; ++low) {
    const uint16_t high = low + 1;
    const auto middle = static_cast<float>((Oracle::Magnitude(low) + Oracle::Magnitude(high)) / 2);
    const float below = std::nextafter(middle, 0.0f);
    const float above = std::nextafter(middle, INFINITY);
    const uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(TypeParam::Encode(middle), even) << std::hex << low;
    ASSERT_EQ(TypeParam::Encode(below), low) << std::hex << low;
    ASSERT_EQ(TypeParam::Encode(above), high) << std::hex << low;
    ASSERT_EQ(TypeParam::Encode(-middle), even | 0x8000) << std::hex << low;
    ASSERT_EQ(TypeParam::Encode(-below), low | 0x8000) << std::hex << low;
    ASSERT_EQ(TypeParam::Encode(-above), high | 0x8000) << std::hex << low;
  }
}

// Every 10007th fp32 pattern: all exponents, fp32's subnormals, infinities and NaNs of both signs.
TYPED_TEST(Float16, RoundsFp32LikeTheOracle) {
  using Oracle = Ieee<TypeParam>;
  int num_nans = 0;
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 10007) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    const uint16_t encoded = TypeParam::Encode(value);
    ASSERT_EQ(encoded >= 0x8000, std::signbit(value)) << std::hex << bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(Oracle::IsNan(encoded)) << std::hex << bits;
      ++num_nans;
    } else {
      ASSERT_EQ(static_cast<double>(TypeParam::Decode(encoded)), Oracle::Round(value))
          << std::hex << bits;
    }
  }
  EXPECT_GT(num_nans, 1000);
}

TEST(Fp16Encode, KnownValues) {
  EXPECT_EQ(Fp16FromFp32(1.0f), 0x3c00);
  EXPECT_EQ(Fp16FromFp32(-2.0f), 0xc000);
  EXPECT_EQ(Fp16FromFp32(65504.0f), 0x7bff);
  EXPECT_EQ(Fp16FromFp32(65519.996f), 0x7bff) << "just below the tie with infinity";
  EXPECT_EQ(Fp16FromFp32(65520.0f), 0x7c00) << "the tie goes to infinity, the even one";
  EXPECT_EQ(Fp16FromFp32(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(Fp16FromFp32(0x1p-14f), 0x0400) << "the smallest normal";
  EXPECT_EQ(Fp16FromFp32(0x1.ff8p-15f), 0x03ff) << "the largest subnormal";
  EXPECT_EQ(Fp16FromFp32(0x1p-24f), 0x0001) << "the smallest subnormal";
  EXPECT_EQ(Fp16FromFp32(0x1p-25f), 0x0000) << "half of it ties to zero";
  EXPECT_EQ(Fp16FromFp32(0x1.000002p-25f), 0x0001);
  EXPECT_EQ(Fp16FromFp32(-std::numeric_limits<float>::denorm_min()), 0x8000);
}

TEST(Bf16Encode, KnownValues) {
  EXPECT_EQ(Bf16FromFp32(1.0f), 0x3f80);
  EXPECT_EQ(Bf16FromFp32(1.0f + 0x1p-8f), 0x3f80) << "a tie, down to the even one";
  EXPECT_EQ(Bf16FromFp32(1.0f + 0x1p-7f + 0x1p-8f), 0x3f82) << "a tie, up to the even one";
  EXPECT_EQ(Bf16FromFp32(std::bit_cast<float>(0x7f7f7fffu)), 0x7f7f);
  EXPECT_EQ(Bf16FromFp32(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Bf16FromFp32(std::numeric_limits<float>::min()), 0x0080);
  EXPECT_EQ(Bf16FromFp32(std::numeric_limits<float>::denorm_min()), 0x0000);
  EXPECT_EQ(Bf16FromFp32(-0.0f), 0x8000);
}

// A NaN whose payload lies only in the bits that are cut off must not become an infinity, nor may
// one full of ones wrap around to zero.
TEST(Nan, SurvivesWhereverItsPayloadLies) {
  for (const uint32_t bits : {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u,
                              0xffffffffu, 0x7fa00000u}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(Fp32FromBf16(Bf16FromFp32(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(Fp32FromFp16(Fp16FromFp32(nan)))) << std::hex << bits;
    EXPECT_EQ(Bf16FromFp32(nan) & 0x0040, 0x0040) << "not quiet: " << std::hex << bits;
  }
}

}  // namespace
}  // namespace kindling
