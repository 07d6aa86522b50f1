#include "kernels/cpu.h"

#ifdef KINDLING_HAVE_X86
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include <algorithm>
#include <string_view>

namespace kindling {
namespace {

// One line of the rule: how fast a set multiplies bf16 operands.
struct Rate {
  Isa isa;
  bool (*serves)(const Cpu& cpu);
  int flop_per_cycle;  // of a core, at its peak
};

// Sets are chosen by these rates, which follow from what the processor is: measuring would make
// bits depend on luck. FMA of two ports, 2 FLOP a lane.
constexpr Rate kRates[] = {
    {Isa::kPortable, [](const Cpu&) { return true; }, 16},
    {Isa::kAvx2, [](const Cpu& cpu) { return cpu.has_avx2; }, 32},
    {Isa::kAvx512, [](const Cpu& cpu) { return cpu.has_avx512; }, 64},
    // VDPBF16PS, 4 FLOP a lane. Intel issues one in two cycles.
    // Measured: 105 to 123 GFLOP/s beside 209 to 238 of fp32 FMA, Sapphire Rapids, 2026-12.
    {Isa::kAvx512Bf16, [](const Cpu& cpu) { return cpu.has_avx512_bf16 && cpu.is_intel; }, 32},
    // AMD issues two a cycle on 512-bit ports (Zen 5), half as many of everything on 256-bit ones.
    // Measured: 507 to 552 GFLOP/s beside 264 to 278 (Zen 5), 208 to 230 beside 104 to 115 (Zen 4).
    {Isa::kAvx512Bf16, [](const Cpu& cpu) { return cpu.has_avx512_bf16 && !cpu.is_intel; }, 128},
    // TDPBF16PS, 16 x 16 x 32 multiply-adds in 16 cycles.
    // Measured: 3.5 TFLOP/s in registers, Xeon with AMX, 2026-12.
    {Isa::kAmxBf16, [](const Cpu& cpu) { return cpu.has_amx_bf16; }, 1024},
};

#ifdef KINDLING_HAVE_X86

struct CpuidLeaf {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
};

// All zero where the processor does not know the leaf.
CpuidLeaf ReadCpuid(unsigned int leaf) {
  CpuidLeaf out;
  __get_cpuid_count(leaf, 0, &out.eax, &out.ebx, &out.ecx, &out.edx);
  return out;
}

bool IsIntel() {
  const CpuidLeaf leaf = ReadCpuid(0);
  return leaf.ebx == signature_INTEL_ebx && leaf.edx == signature_INTEL_edx &&
         leaf.ecx == signature_INTEL_ecx;
}

// Tiles are state that a process must ask for. The answer holds for all of its threads and its
// children by fork. Source: Linux, Documentation/arch/x86/xstate.rst.
bool OsGrantsTiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestStatePermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestStatePermission, kTileData) == 0;
#else
  return false;
#endif
}

Cpu DetectCpu() {
  Cpu cpu;
  cpu.is_intel = IsIntel();
  // Clang 14's __builtin_cpu_supports does not know f16c.
  cpu.has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 (ReadCpuid(1).ecx & bit_F16C) != 0;
  cpu.has_avx512 = cpu.has_avx2 && __builtin_cpu_supports("avx512f");
  cpu.has_avx512_bf16 =
      cpu.has_avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
  constexpr unsigned int kAmxBf16Bit = 1u << 22;
  constexpr unsigned int kAmxTileBit = 1u << 24;
  const unsigned int amx = ReadCpuid(7).edx & (kAmxBf16Bit | kAmxTileBit);
  cpu.has_amx_bf16 = cpu.has_avx512_bf16 && amx == (kAmxBf16Bit | kAmxTileBit) && OsGrantsTiles();
  return cpu;
}

#else

Cpu DetectCpu() { return Cpu(); }

#endif  // KINDLING_HAVE_X86

}  // namespace

const Cpu& ThisCpu() {
  static const Cpu cpu = DetectCpu();
  return cpu;
}

std::vector<Isa> RankIsas(const Cpu& cpu) {
  std::vector<Rate> rates;
  for (const Rate& rate : kRates) {
    if (rate.serves(cpu)) rates.push_back(rate);
  }
  std::stable_sort(rates.begin(), rates.end(), [](const Rate& a, const Rate& b) {
    return a.flop_per_cycle < b.flop_per_cycle;
  });
  std::vector<Isa> isas;
  for (const Rate& rate : rates) isas.push_back(rate.isa);
  return isas;
}

}  // namespace kindling
