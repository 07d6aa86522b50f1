// Functions of one row or vector of fp32 values: loading, storing, exp and ln, what stands between
// the products. `Vec` is a vector layer (contract in vec_portable.h). Included by one translation
// unit per instruction set, which is compiled for it; everything here is a member of a template
// over Vec, so that no symbol is shared between them.
#ifndef KINDLING_SRC_KERNELS_TILE_ROWS_H_
#define KINDLING_SRC_KERNELS_TILE_ROWS_H_

#include <cstdint>
#include <type_traits>

#include "kernels/kernels.h"

namespace kindling {

template <class Vec>
struct RowKernels {
  using Float = typename Vec::Float;
  using Int = typename Vec::Int;
  using Mask = typename Vec::Mask;
  static constexpr int64_t kLanes = Vec::kLanes;

  // ---- Elementary functions ----

  // e^x within 2 ulp, exactly 0 below -104 and inf above 88.8; NaN stays NaN.
  // Source: coefficients of Cephes' expf (S. Moshier), e^r = 1 + r + r^2 P(r) on |r| <= ln(2)/2.
  static inline Float Exp(Float x) {
    x = Vec::Min(Vec::Set(89.0f), Vec::Max(Vec::Set(-104.0f), x));
    const Int n = Vec::Round(Vec::Mul(x, Vec::Set(1.44269504088896341f)));
    const Float n_float = Vec::ToFloat(n);
    Float r = Vec::MulAdd(n_float, Vec::Set(-0.693359375f), x);
    r = Vec::MulAdd(n_float, Vec::Set(2.12194440e-4f), r);
    Float poly = Vec::Set(1.9875691500e-4f);
    poly = Vec::MulAdd(poly, r, Vec::Set(1.3981999507e-3f));
    poly = Vec::MulAdd(poly, r, Vec::Set(8.3334519073e-3f));
    poly = Vec::MulAdd(poly, r, Vec::Set(4.1665795894e-2f));
    poly = Vec::MulAdd(poly, r, Vec::Set(1.6666665459e-1f));
    poly = Vec::MulAdd(poly, r, Vec::Set(5.0000001201e-1f));
    const Float e = Vec::Add(Vec::MulAdd(Vec::Mul(r, r), poly, r), Vec::Set(1.0f));
    if constexpr (requires { Vec::ScaleByPowerOfTwo(e, n_float); }) {
      return Vec::ScaleByPowerOfTwo(e, n_float);
    } else {
      // 2^n in two factors, since n reaches 128 and -150. Only the second may round.
      const Int half = Vec::template ShiftRight<1>(n);
      return Vec::Mul(Vec::Mul(e, PowerOfTwo(half)), PowerOfTwo(Vec::SubInt(n, half)));
    }
  }

  // 2^n. Requires: -126 <= n <= 127.
  static inline Float PowerOfTwo(Int n) {
    return Vec::FromBits(Vec::template ShiftLeft<23>(Vec::AddInt(n, Vec::SetInt(127))));
  }

  // ln x within 2 ulp for normal x > 0; anything else counts as the smallest normal.
  // Source: coefficients of Cephes' logf (S. Moshier) on [sqrt(1/2), sqrt(2)).
  static inline Float Log(Float x) {
    x = Vec::Max(Vec::Set(0x1p-126f), x);
    const Int bits = Vec::Bits(x);
    const Int exponent = Vec::template ShiftRight<23>(Vec::SubInt(bits, Vec::SetInt(0x3f3504f3)));
    const Float mantissa = Vec::FromBits(Vec::SubInt(bits, Vec::template ShiftLeft<23>(exponent)));
    const Float e = Vec::ToFloat(exponent);
    const Float m = Vec::Sub(mantissa, Vec::Set(1.0f));
    Float poly = Vec::Set(7.0376836292e-2f);
    poly = Vec::MulAdd(poly, m, Vec::Set(-1.1514610310e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(1.1676998740e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(-1.2420140846e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(1.4249322787e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(-1.6668057665e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(2.0000714765e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(-2.4999993993e-1f));
    poly = Vec::MulAdd(poly, m, Vec::Set(3.3333331174e-1f));
    const Float square = Vec::Mul(m, m);
    Float y = Vec::Mul(Vec::Mul(m, square), poly);
    y = Vec::MulAdd(e, Vec::Set(-2.12194440e-4f), y);
    y = Vec::MulAdd(square, Vec::Set(-0.5f), y);
    return Vec::MulAdd(e, Vec::Set(0.693359375f), Vec::Add(m, y));
  }

  static inline Float Relu(Float x) { return Vec::Max(Vec::Set(0.0f), x); }

  // Calls function(j, mask) for every vector of [0, count).
  template <class Function>
  static inline void ForVectors(int64_t count, Function function) {
    const Mask all = Vec::First(kLanes);
    int64_t j = 0;
    for (; j + kLanes <= count; j += kLanes) function(j, all);
    if (j < count) function(j, Vec::First(count - j));
  }

  // ---- Rows in and out ----

  static bool LoadRow(const void* row, DType dtype, int64_t element_stride, int64_t count,
                      float* out) {
    // x * 0 is 0 for finite x and NaN otherwise.
    const Float zero = Vec::Set(0.0f);
    Float poison = zero;
    const auto load = [&](auto* p, auto load_vector) {
      int64_t i = 0;
      if (element_stride == 1) {
        for (; i + kLanes <= count; i += kLanes) {
          const Float x = load_vector(p + i);
          poison = Vec::MulAdd(x, zero, poison);
          Vec::Store(out + i, x);
        }
      }
      for (; i < count; i += kLanes) {
        std::remove_cvref_t<decltype(*p)> part[kLanes] = {};
        float wide[kLanes];
        const int64_t some = count - i < kLanes ? count - i : kLanes;
        for (int64_t lane = 0; lane < some; ++lane) part[lane] = p[(i + lane) * element_stride];
        const Float x = load_vector(part);
        poison = Vec::MulAdd(x, zero, poison);
        Vec::Store(wide, x);
        for (int64_t lane = 0; lane < some; ++lane) out[i + lane] = wide[lane];
      }
    };
    if (dtype == DType::kBFloat16) {
      load(static_cast<const uint16_t*>(row), [](const uint16_t* p) { return Vec::LoadBf16(p); });
    } else if (dtype == DType::kFloat16) {
      load(static_cast<const uint16_t*>(row), [](const uint16_t* p) { return Vec::LoadFp16(p); });
    } else {
      load(static_cast<const float*>(row), [](const float* p) { return Vec::Load(p); });
    }
    return Vec::ReduceAdd(poison) == 0.0f;
  }

  static void StoreRow(const float* row, int64_t count, DType dtype, void* out) {
    const auto store = [&](auto* p, auto store_vector) {
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) store_vector(p + i, Vec::Load(row + i));
      if (i == count) return;
      float wide[kLanes] = {};
      std::remove_cvref_t<decltype(*p)> part[kLanes];
      for (int64_t lane = 0; i + lane < count; ++lane) wide[lane] = row[i + lane];
      store_vector(part, Vec::Load(wide));
      for (int64_t lane = 0; i + lane < count; ++lane) p[i + lane] = part[lane];
    };
    if (dtype == DType::kBFloat16) {
      store(static_cast<uint16_t*>(out), [](uint16_t* p, Float x) { Vec::StoreBf16(p, x); });
    } else if (dtype == DType::kFloat16) {
      store(static_cast<uint16_t*>(out), [](uint16_t* p, Float x) { Vec::StoreFp16(p, x); });
    } else {
      store(static_cast<float*>(out), [](float* p, Float x) { Vec::Store(p, x); });
    }
  }

  // ---- Forward rows ----

  static void WeighScores(const float* scores, const float* w, int64_t num_heads, int64_t count,
                          float* logits) {
    // Four chains of dependent additions hide the latency of one.
    constexpr int64_t kChains = 4;
    int64_t j = 0;
    for (; j + kChains * kLanes <= count; j += kChains * kLanes) {
      Float sum[kChains];
      for (int64_t c = 0; c < kChains; ++c) sum[c] = Vec::Set(0.0f);
      for (int64_t head = 0; head < num_heads; ++head) {
        const float* row = scores + head * kScoreStride + j;
        const Float weight = Vec::Set(w[head]);
        for (int64_t c = 0; c < kChains; ++c) {
          sum[c] = Vec::MulAdd(weight, Relu(Vec::Load(row + c * kLanes)), sum[c]);
        }
      }
      for (int64_t c = 0; c < kChains; ++c) Vec::Store(logits + j + c * kLanes, sum[c]);
    }
    for (; j < count; j += kLanes) {
      Float sum = Vec::Set(0.0f);
      for (int64_t head = 0; head < num_heads; ++head) {
        const Float s = Vec::Load(scores + head * kScoreStride + j);
        sum = Vec::MulAdd(Vec::Set(w[head]), Relu(s), sum);
      }
      Vec::Store(logits + j, sum);
    }
  }

  static MaxSum MaxAndSum(const float* x, int64_t count, float scale) {
    const Float factor = Vec::Set(scale);
    const Float lowest = Vec::Set(-__builtin_inff());
    Float most = lowest;
    ForVectors(count, [&](int64_t j, Mask mask) {
      const Float value = Vec::Mul(factor, Vec::Load(x + j));
      most = Vec::Max(most, Vec::Select(mask, value, lowest));
    });
    const float max = Vec::ReduceMax(most);
    // Without this, a chunk that holds nothing but -inf would count as NaN.
    const Float shift = Vec::Set(max == -__builtin_inff() ? 0.0f : max);
    const Float zero = Vec::Set(0.0f);
    Float sum = zero;
    ForVectors(count, [&](int64_t j, Mask mask) {
      const Float value = Vec::Mul(factor, Vec::Load(x + j));
      sum = Vec::Add(sum, Vec::Select(mask, Exp(Vec::Sub(value, shift)), zero));
    });
    return {max, Vec::ReduceAdd(sum)};
  }

  static MaxSum Merge(MaxSum a, MaxSum b) {
    if (a.sum == 0.0f) return b;
    const float max = a.max > b.max ? a.max : b.max;
    float scale_a[kLanes];
    float scale_b[kLanes];
    Vec::Store(scale_a, Exp(Vec::Set(a.max - max)));
    Vec::Store(scale_b, Exp(Vec::Set(b.max - max)));
    return {max, a.sum * scale_a[0] + b.sum * scale_b[0]};
  }

  static float Sum(const float* x, int64_t count) {
    const Float zero = Vec::Set(0.0f);
    Float sum = zero;
    ForVectors(count, [&](int64_t j, Mask mask) {
      sum = Vec::Add(sum, Vec::Select(mask, Vec::Load(x + j), zero));
    });
    return Vec::ReduceAdd(sum);
  }

  static void AddExp(const float* x, int64_t count, float scale, float lse, float* out) {
    const Float factor = Vec::Set(scale);
    const Float shift = Vec::Set(-lse);
    ForVectors(count, [&](int64_t j, Mask) {
      const Float value = Exp(Vec::MulAdd(factor, Vec::Load(x + j), shift));
      Vec::Store(out + j, Vec::Add(Vec::Load(out + j), value));
    });
  }

  static void Divide(const float* x, int64_t count, float divisor, float* out) {
    const Float by = Vec::Set(divisor);
    ForVectors(count,
               [&](int64_t j, Mask) { Vec::Store(out + j, Vec::Div(Vec::Load(x + j), by)); });
  }

  // ---- Backward rows ----

  static void Gradient(const GradRow& row) {
    const Float zero = Vec::Set(0.0f);
    const Float lse = Vec::Set(row.lse);
    const Float teacher_sum = Vec::Set(row.teacher_sum);
    const Float row_scale = Vec::Set(row.row_scale);
    ForVectors(row.count, [&](int64_t j, Mask mask) {
      const Float y = Exp(Vec::Sub(Vec::Load(row.logits + j), lse));
      const Float minus_p = Vec::Mul(Vec::Load(row.teacher + j), Vec::Set(-1.0f));
      const Float grad = Vec::Mul(row_scale, Vec::MulAdd(y, teacher_sum, minus_p));
      Vec::Store(row.softmax + j, y);
      Vec::Store(row.logits_grad + j, Vec::Select(mask, grad, zero));
    });
  }

  static LossTerms LossOfChunk(const float* logits, const float* teacher, int64_t count,
                               float shift) {
    const Float zero = Vec::Set(0.0f);
    const Float offset = Vec::Set(shift);
    Float entropy = zero;
    Float teacher_sum = zero;
    ForVectors(count, [&](int64_t j, Mask mask) {
      const Float p = Vec::Select(mask, Vec::Load(teacher + j), zero);
      const Float log_y = Vec::Add(Vec::Load(logits + j), offset);
      // Where p is not above zero, this leaves nothing, or a NaN that was there.
      const Mask positive = Vec::Greater(p, zero);
      const Float nothing = Vec::Max(zero, p);
      entropy =
          Vec::Add(entropy, Vec::Select(positive, Vec::Mul(p, Vec::Sub(Log(p), log_y)), nothing));
      teacher_sum = Vec::Add(teacher_sum, Vec::Select(positive, p, nothing));
    });
    return {Vec::ReduceAdd(entropy), Vec::ReduceAdd(teacher_sum)};
  }
};

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_TILE_ROWS_H_
