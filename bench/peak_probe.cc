#include "bench/peak_probe.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace kindling::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Sums that do not wait for one another. An FMA of 4 cycles, two a cycle, needs 8 of them and
// leaves 4 of AVX2's 16 registers; a bf16 dot product of 6 cycles, two a cycle, needs 12.
constexpr int kNarrowSums = 12;
constexpr int kWideSums = 16;
constexpr int64_t kSteps = 2000;

constexpr int kNumPeaks = static_cast<int>(Peak::kBf16Tile) + 1;

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

// A tile product takes 16 cycles and its sum 52: six sums, rows and columns are the 8 tiles.
__attribute__((target("amx-tile,amx-bf16"))) double RunBf16Tile() {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t num_rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;                                             // the operand of LDTILECFG
  std::atomic_signal_fence(std::memory_order_seq_cst);  // GCC does not know that it is read
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t step = 0; step < kSteps; ++step) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 6 * kSteps;
}

#else
double RunFp32x8() { return 0.0; }
double RunFp32x16() { return 0.0; }
double RunBf16x32() { return 0.0; }
double RunBf16Tile() { return 0.0; }
#endif

double RunSteps(Peak peak) {
  switch (peak) {
    case Peak::kFp32x8:
      return RunFp32x8();
    case Peak::kFp32x16:
      return RunFp32x16();
    case Peak::kBf16x32:
      return RunBf16x32();
    case Peak::kBf16Tile:
      return RunBf16Tile();
    default:
      return RunFp32x4();
  }
}

// One chunk, a few times. Returns how many exps that were.
double RunExps(const KernelTable& kernels) {
  alignas(64) std::array<float, kKeysPerChunk> x;
  alignas(64) std::array<float, kKeysPerChunk> sums{};
  for (int64_t j = 0; j < kKeysPerChunk; ++j) x[j] = static_cast<float>(j % 17);
  constexpr int kTimes = 64;
  for (int i = 0; i < kTimes; ++i) kernels.add_exp(x.data(), kKeysPerChunk, 1, 20, sums.data());
  return static_cast<double>(kTimes * kKeysPerChunk);
}

// What `num_threads` threads do together in a second; `run` does some and says how much.
template <class Run>
double MeasureRate(const Run& run, int64_t num_threads, int64_t micros) {
  std::vector<double> rates(num_threads, 0.0);
  std::atomic<int64_t> num_ready = 0;
  // All run at the same time: they share a clock, and perhaps a core.
  const auto work = [&](int64_t thread) {
    ++num_ready;
    while (num_ready < num_threads) std::this_thread::yield();
    const Clock::time_point begin = Clock::now();
    const Clock::time_point end = begin + std::chrono::microseconds(micros);
    double done = 0.0;
    Clock::time_point now = begin;
    while (now < end) {
      done += run();
      now = Clock::now();
    }
    rates[thread] = done / std::chrono::duration<double>(now - begin).count();
  };
  std::vector<std::thread> others;
  for (int64_t thread = 1; thread < num_threads; ++thread) others.emplace_back(work, thread);
  work(0);
  for (std::thread& other : others) other.join();
  double sum = 0.0;
  for (const double rate : rates) sum += rate;
  return sum;
}

// Of one thread, the best of a few; 0 where this processor has none.
std::array<double, kNumPeaks> MeasureAll() {
  std::array<double, kNumPeaks> rates{};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kNumPeaks; ++i) {
      const auto peak = static_cast<Peak>(i);
      if (HasPeak(peak)) rates[i] = std::max(rates[i], MeasurePeak(peak, 1));
    }
  }
  return rates;
}

}  // namespace

std::string_view PeakName(Peak peak) {
  constexpr std::string_view kNames[] = {"fp32 128-bit", "fp32 256-bit FMA", "fp32 512-bit FMA",
                                         "bf16 512-bit dot product", "bf16 AMX tile"};
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
    case Peak::kBf16Tile: {  // needs what the operating system grants; the library asks for it
      const std::vector<Isa> isas = SupportedIsas();
      return std::find(isas.begin(), isas.end(), Isa::kAmxBf16) != isas.end();
    }
    default:
      return true;
  }
#else
  return peak == Peak::kFp32x4;
#endif
}

Peak BestPeak(Isa isa, DType dtype) {
  static const std::array<double, kNumPeaks> rates = MeasureAll();
  constexpr std::pair<Peak, Isa> kWays[] = {{Peak::kFp32x4, Isa::kPortable},
                                            {Peak::kFp32x8, Isa::kAvx2},
                                            {Peak::kFp32x16, Isa::kAvx512},
                                            {Peak::kBf16x32, Isa::kAvx512Bf16},
                                            {Peak::kBf16Tile, Isa::kAmxBf16}};
  const bool is_forced = isa != SupportedIsas().back();
  Peak best = Peak::kFp32x4;
  for (const auto& [peak, needed] : kWays) {
    const bool is_bf16 = peak == Peak::kBf16x32 || peak == Peak::kBf16Tile;
    if ((is_forced && needed > isa) || (is_bf16 && dtype != DType::kBFloat16)) continue;
    if (rates[static_cast<int>(peak)] > rates[static_cast<int>(best)]) best = peak;
  }
  return best;
}

double MeasurePeak(Peak peak, int64_t num_threads, int64_t micros) {
  return MeasureRate([peak] { return RunSteps(peak); }, num_threads, micros);
}

double MeasureExps(Isa isa, int64_t num_threads, int64_t micros) {
  const KernelTable& kernels = *KernelsFor(isa);
  return MeasureRate([&kernels] { return RunExps(kernels); }, num_threads, micros);
}

}  // namespace kindling::bench
