// The vector layer of vec_portable.h on AVX2, FMA and F16C.
#ifndef KINDLING_SRC_KERNELS_VEC_AVX2_H_
#define KINDLING_SRC_KERNELS_VEC_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace kindling {

// Contract: as PortableVec.
struct Avx2Vec {
  static constexpr int kLanes = 8;
  // 6 rows x 2 vectors of sums, 2 of loaded columns and 1 broadcast: 15 of 16 registers.
  static constexpr int kTileRows = 6;
  static constexpr int kPanelVectors = 2;

  using Float = __m256;
  using Int = __m256i;
  using Mask = __m256;

  static inline Float Set(float x) { return _mm256_set1_ps(x); }
  static inline Float Load(const float* p) { return _mm256_loadu_ps(p); }
  static inline void Store(float* p, Float a) { _mm256_storeu_ps(p, a); }
  static inline Float LoadBf16(const uint16_t* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static inline Float LoadFp16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static inline void StoreBf16(uint16_t* p, Float a) {
    const Int bits = _mm256_castps_si256(a);
    const Int odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const Int rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    const Int quiet_nan = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x0040));
    const Int is_nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    const Int out = _mm256_blendv_epi8(rounded, quiet_nan, is_nan);
    const Int packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static inline void StoreFp16(uint16_t* p, Float a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static inline Float Add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static inline Float Sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static inline Float Mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static inline Float Div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static inline Float MulAdd(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static inline Float Min(Float a, Float b) { return _mm256_min_ps(a, b); }
  static inline Float Max(Float a, Float b) { return _mm256_max_ps(a, b); }

  static inline Mask Greater(Float a, Float b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static inline Mask First(int64_t count) {
    const Int lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const int32_t limit = count > kLanes ? kLanes : static_cast<int32_t>(count);
    return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(limit), lane));
  }
  static inline Float Select(Mask m, Float a, Float b) { return _mm256_blendv_ps(b, a, m); }

  static inline Int Round(Float a) { return _mm256_cvtps_epi32(a); }
  static inline Float ToFloat(Int a) { return _mm256_cvtepi32_ps(a); }
  static inline Float FromBits(Int a) { return _mm256_castsi256_ps(a); }
  static inline Int Bits(Float a) { return _mm256_castps_si256(a); }
  static inline Int SetInt(int32_t x) { return _mm256_set1_epi32(x); }
  static inline Int AddInt(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static inline Int SubInt(Int a, Int b) { return _mm256_sub_epi32(a, b); }
  template <int kBits>
  static inline Int ShiftLeft(Int a) {
    return _mm256_slli_epi32(a, kBits);
  }
  template <int kBits>
  static inline Int ShiftRight(Int a) {
    return _mm256_srai_epi32(a, kBits);
  }

  static inline float ReduceAdd(Float a) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  static inline float ReduceMax(Float a) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
  }

  // 4 x 4 blocks of lanes within 128 bits, then the halves.
  static inline void Transpose(Float (&rows)[kLanes]) {
    Float t[kLanes];
    for (int i = 0; i < kLanes; i += 4) {
      const Float ab_low = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      const Float ab_high = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
      const Float cd_low = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
      const Float cd_high = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
      t[i] = _mm256_shuffle_ps(ab_low, cd_low, 0x44);
      t[i + 1] = _mm256_shuffle_ps(ab_low, cd_low, 0xee);
      t[i + 2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
      t[i + 3] = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      rows[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
      rows[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_VEC_AVX2_H_
