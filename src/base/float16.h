// Scalar conversions between fp32 and the two 16-bit formats, round to nearest even.
#ifndef KINDLING_SRC_BASE_FLOAT16_H_
#define KINDLING_SRC_BASE_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace kindling {

inline float Fp32FromBf16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t Bf16FromFp32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);  // keep NaN a NaN, quiet
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float Fp32FromFp16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  // Exponents differ in bias by 127 - 15 = 112; multiplying by 2^112 also normalises subnormals.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  uint32_t bits = std::bit_cast<uint32_t>(scaled);
  if (magnitude >= 0x0f800000u) bits = magnitude | 0x7f800000u;  // infinity and NaN
  return std::bit_cast<float>(bits | sign);
}

inline uint16_t Fp16FromFp32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is a subnormal with ulp 2^-24: adding 0.5 = 2^-24 * 2^23 rounds there.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace kindling

#endif  // KINDLING_SRC_BASE_FLOAT16_H_
