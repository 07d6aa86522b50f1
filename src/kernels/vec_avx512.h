// The vector layer of vec_portable.h on AVX-512F.
#ifndef KINDLING_SRC_KERNELS_VEC_AVX512_H_
#define KINDLING_SRC_KERNELS_VEC_AVX512_H_

#ifndef KINDLING_EMULATED_AVX512
#include <immintrin.h>
#endif

#include <cstdint>

namespace kindling {

// Contract: as PortableVec. `ForSet` names the instruction set that the including file is compiled
// for, so that no other file shares its functions.
template <class ForSet>
struct Avx512Vec {
  static constexpr int kLanes = 16;
  // 6 rows x 4 vectors of sums, 4 of loaded columns and 1 broadcast: 29 of 32 registers. 24 sums
  // hide a latency of 6 cycles at two a cycle twice over.
  static constexpr int kTileRows = 6;
  static constexpr int kPanelVectors = 4;

  using Float = __m512;
  using Int = __m512i;
  using Mask = __mmask16;

  static inline Float Set(float x) { return _mm512_set1_ps(x); }
  static inline Float Load(const float* p) { return _mm512_loadu_ps(p); }
  static inline void Store(float* p, Float a) { _mm512_storeu_ps(p, a); }
  static inline Float LoadBf16(const uint16_t* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static inline Float LoadFp16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // Rounded to nearest even; keeps subnormals, which VCVTNEPS2BF16 would flush.
  static inline void StoreBf16(uint16_t* p, Float a) {
    const Int bits = _mm512_castps_si512(a);
    const Int odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Int rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    const Int quiet_nan = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x0040));
    const Mask is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet_nan)));
  }
  static inline void StoreFp16(uint16_t* p, Float a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  static inline Float Add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static inline Float Sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static inline Float Mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static inline Float Div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static inline Float MulAdd(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static inline Float Min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static inline Float Max(Float a, Float b) { return _mm512_max_ps(a, b); }

  static inline Mask Greater(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static inline Mask First(int64_t count) {
    return static_cast<Mask>(count >= kLanes ? 0xffffu : (1u << count) - 1u);
  }
  static inline Float Select(Mask m, Float a, Float b) { return _mm512_mask_blend_ps(m, b, a); }

  // a * 2^n, rounded once. A layer may be without it.
  static inline Float ScaleByPowerOfTwo(Float a, Float n) { return _mm512_scalef_ps(a, n); }

  static inline Int Round(Float a) { return _mm512_cvtps_epi32(a); }
  static inline Float ToFloat(Int a) { return _mm512_cvtepi32_ps(a); }
  static inline Float FromBits(Int a) { return _mm512_castsi512_ps(a); }
  static inline Int Bits(Float a) { return _mm512_castps_si512(a); }
  static inline Int SetInt(int32_t x) { return _mm512_set1_epi32(x); }
  static inline Int AddInt(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static inline Int SubInt(Int a, Int b) { return _mm512_sub_epi32(a, b); }
  template <int kBits>
  static inline Int ShiftLeft(Int a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  static inline Int ShiftRight(Int a) {
    return _mm512_srai_epi32(a, kBits);
  }

  // Lanes l and l + 8, then l + 4, l + 2, l + 1, as AVX2 folds its 8.
  static inline float ReduceAdd(Float a) {
    a = _mm512_add_ps(a, _mm512_shuffle_f32x4(a, a, 0x4e));
    __m128 sum = _mm_add_ps(_mm512_castps512_ps128(a), _mm512_extractf32x4_ps(a, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  static inline float ReduceMax(Float a) {
    a = _mm512_max_ps(a, _mm512_shuffle_f32x4(a, a, 0x4e));
    __m128 most = _mm_max_ps(_mm512_castps512_ps128(a), _mm512_extractf32x4_ps(a, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_movehdup_ps(most)));
  }

  // 4 x 4 blocks of lanes within 128 bits, then the blocks.
  static inline void Transpose(Float (&rows)[kLanes]) {
    Int t[kLanes];
    for (int i = 0; i < kLanes; i += 4) {
      const Int a = Bits(rows[i]);
      const Int b = Bits(rows[i + 1]);
      const Int c = Bits(rows[i + 2]);
      const Int d = Bits(rows[i + 3]);
      const Int ab_low = _mm512_unpacklo_epi32(a, b);
      const Int ab_high = _mm512_unpackhi_epi32(a, b);
      const Int cd_low = _mm512_unpacklo_epi32(c, d);
      const Int cd_high = _mm512_unpackhi_epi32(c, d);
      t[i] = _mm512_unpacklo_epi64(ab_low, cd_low);
      t[i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
      t[i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
      t[i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // Block q of t[4 g + i] holds rows 4 g .. 4 g + 3 of column 4 q + i.
    for (int i = 0; i < 4; ++i) {
      const Int even_low = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);  // blocks 0 2 of g 0, 1
      const Int odd_low = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);   // blocks 1 3
      const Int even_high = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);  // of g 2, 3
      const Int odd_high = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
      rows[i] = FromBits(_mm512_shuffle_i32x4(even_low, even_high, 0x88));
      rows[i + 4] = FromBits(_mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
      rows[i + 8] = FromBits(_mm512_shuffle_i32x4(even_low, even_high, 0xdd));
      rows[i + 12] = FromBits(_mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
    }
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_VEC_AVX512_H_
