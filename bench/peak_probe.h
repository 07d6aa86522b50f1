// What this processor multiplies and adds at most, now: loops over registers alone. A rate that is
// measured between two probes a moment apart can be held against them, whatever the clock does.
#ifndef KINDLING_BENCH_PEAK_PROBE_H_
#define KINDLING_BENCH_PEAK_PROBE_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "kindling/runtime.h"
#include "kindling/tensor.h"

namespace kindling::bench {

enum class Peak {
  kFp32x4,    // 128 bits: multiply and add, fused where every processor of the architecture can
  kFp32x8,    // 256 bits, FMA
  kFp32x16,   // 512 bits, FMA
  kBf16x32,   // 512 bits, dot products of bf16 pairs
  kBf16Tile,  // AMX, products of bf16 tiles
};

std::string_view PeakName(Peak peak);

// Whether this processor can run the probe.
bool HasPeak(Peak peak);

// The fastest way that there is to multiply q and k of `dtype` with sums in fp32: of all that this
// processor has, whatever the kernels use; where `isa` is not its best set, of what `isa` has.
// Which it is was measured once, when first asked.
Peak BestPeak(Isa isa, DType dtype);

// FLOP/s that `num_threads` threads reach together in about `micros` microseconds.
// Requires: HasPeak(peak).
double MeasurePeak(Peak peak, int64_t num_threads, int64_t micros = 1500);

// exps a second, likewise, by the kernels of `isa`: exp(scale * x - lse), added to sums in L1.
double MeasureExps(Isa isa, int64_t num_threads, int64_t micros = 1500);

}  // namespace kindling::bench

#endif  // KINDLING_BENCH_PEAK_PROBE_H_
