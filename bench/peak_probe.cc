#include "bench/peak_probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace kindling::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Sums that do not wait for one another. An FMA of 4 cycles, two a cycle, needs 8 of them and
// leaves 4 of AVX2's 16 registers; a bf16 dot product of 6 cycles, two a cycle, needs 12.
constexpr int kNarrowSums = 12;
constexpr int kWideSums = 16;
constexpr int64_t kSteps = 2000;

// Keeps a register's value from being computed once, or not at all.
#if defined(__x86_64__)
#define KINDLING_OPAQUE(value) asm volatile("" : "+v"(value))
#define KINDLING_OPAQUE_SSE(value) asm volatile("" : "+x"(value))
#elif defined(__aarch64__)
#define KINDLING_OPAQUE_SSE(value) asm volatile("" : "+w"(value))
#else
#define KINDLING_OPAQUE_SSE(value) asm volatile("" : "+m"(value))
#endif

// Vectors of 128 bits as compilers know them on any processor; bench/CMakeLists.txt lets them fuse.
using Fp32x4 = float __attribute__((vector_size(16)));

double RunFp32x4() {
  Fp32x4 sums[kNarrowSums] = {};
  Fp32x4 factor = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (Fp32x4& sum : sums) {
      sum += factor * factor;
      KINDLING_OPAQUE_SSE(sum);
    }
  }
  return 2.0 * 4 * kNarrowSums * kSteps;
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) double RunFp32x8() {
  __m256 sums[kNarrowSums] = {};
  const __m256 factor = _mm256_set1_ps(1e-3f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(factor, factor, sum);
      KINDLING_OPAQUE_SSE(sum);
    }
  }
  return 2.0 * 8 * kNarrowSums * kSteps;
}

__attribute__((target("avx512f"))) double RunFp32x16() {
  __m512 sums[kWideSums] = {};
  const __m512 factor = _mm512_set1_ps(1e-3f);
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(factor, factor, sum);
      KINDLING_OPAQUE(sum);
    }
  }
  return 2.0 * 16 * kWideSums * kSteps;
}

__attribute__((target("avx512f,avx512bf16"))) double RunBf16x32() {
  __m512 sums[kWideSums] = {};
  const __m512bh factor = (__m512bh)_mm512_set1_epi32(0x3a833a83);  // pairs of 1e-3
  for (int64_t step = 0; step < kSteps; ++step) {
#pragma GCC unroll 16
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, factor, factor);
      KINDLING_OPAQUE(sum);
    }
  }
  return 2.0 * 32 * kWideSums * kSteps;
}

#else
double RunFp32x8() { return 0.0; }
double RunFp32x16() { return 0.0; }
double RunBf16x32() { return 0.0; }
#endif

double RunSteps(Peak peak) {
  switch (peak) {
    case Peak::kFp32x8:
      return RunFp32x8();
    case Peak::kFp32x16:
      return RunFp32x16();
    case Peak::kBf16x32:
      return RunBf16x32();
    default:
      return RunFp32x4();
  }
}

// FLOP/s of the calling thread.
double RunFor(Peak peak, int64_t micros) {
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + std::chrono::microseconds(micros);
  double flops = 0.0;
  Clock::time_point now = begin;
  while (now < end) {
    flops += RunSteps(peak);
    now = Clock::now();
  }
  return flops / std::chrono::duration<double>(now - begin).count();
}

}  // namespace

std::string_view PeakName(Peak peak) {
  constexpr std::string_view kNames[] = {"fp32 128-bit", "fp32 256-bit FMA", "fp32 512-bit FMA",
                                         "bf16 512-bit dot product"};
  return kNames[static_cast<int>(peak)];
}

bool HasPeak(Peak peak) {
#if defined(__x86_64__)
  switch (peak) {
    case Peak::kFp32x8:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case Peak::kFp32x16:
      return __builtin_cpu_supports("avx512f");
    case Peak::kBf16x32:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
    default:
      return true;
  }
#else
  return peak == Peak::kFp32x4;
#endif
}

Peak PeakOf(Isa isa, DType dtype) {
  if (isa == Isa::kPortable) return Peak::kFp32x4;
  if (isa == Isa::kAvx2) return Peak::kFp32x8;
  return isa == Isa::kAvx512Bf16 && dtype == DType::kBFloat16 ? Peak::kBf16x32 : Peak::kFp32x16;
}

double MeasurePeak(Peak peak, int64_t num_threads, int64_t micros) {
  std::vector<double> rates(num_threads, 0.0);
  std::atomic<int64_t> num_ready = 0;
  // All run at the same time: they share a clock, and perhaps a core.
  const auto run = [&](int64_t thread) {
    ++num_ready;
    while (num_ready < num_threads) std::this_thread::yield();
    rates[thread] = RunFor(peak, micros);
  };
  std::vector<std::thread> others;
  for (int64_t thread = 1; thread < num_threads; ++thread) others.emplace_back(run, thread);
  run(0);
  for (std::thread& other : others) other.join();
  double sum = 0.0;
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace kindling::bench
