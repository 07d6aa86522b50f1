// Which instruction set runs: found once per question, chosen per process.
#ifdef KINDLING_HAVE_X86
#include <cpuid.h>
#endif

#include <atomic>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"
#include "kernels/kernels.h"
#include "kernels/tables.h"
#include "kindling/runtime.h"

namespace kindling {
namespace {

// One instruction set: its tables for bf16 operands and for others.
struct IsaEntry {
  Isa isa;
  bool (*is_here)();  // whether this processor has it
  const KernelTable* bf16;
  const KernelTable* others;
};

#ifdef KINDLING_HAVE_X86

// Clang 14's __builtin_cpu_supports does not know f16c.
bool HasF16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
}
#ifdef KINDLING_EMULATED_AVX512
bool HasAvx512() { return true; }
bool HasAvx512Bf16() { return true; }
#else
bool HasAvx512() { return HasAvx2() && __builtin_cpu_supports("avx512f"); }
bool HasAvx512Bf16() {
  return HasAvx512() && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
}
#endif

#endif  // KINDLING_HAVE_X86

// In the order of Isa, best last.
constexpr IsaEntry kIsas[] = {
    {Isa::kPortable, [] { return true; }, &kPortableKernels, &kPortableKernels},
#ifdef KINDLING_HAVE_X86
    {Isa::kAvx2, HasAvx2, &kAvx2Kernels, &kAvx2Kernels},
    {Isa::kAvx512, HasAvx512, &kAvx512Kernels, &kAvx512Kernels},
    {Isa::kAvx512Bf16, HasAvx512Bf16, &kAvx512Bf16Kernels, &kAvx512Kernels},
#endif
};

// Null where the build or the processor lacks it.
const IsaEntry* Find(Isa isa) {
  for (const IsaEntry& entry : kIsas) {
    if (entry.isa == isa) return entry.is_here() ? &entry : nullptr;
  }
  return nullptr;
}

const IsaEntry* Best() {
  const IsaEntry* best = kIsas;
  for (const IsaEntry& entry : kIsas) {
    if (entry.is_here()) best = &entry;
  }
  return best;
}

std::atomic<const IsaEntry*>& Current() {
  static std::atomic<const IsaEntry*> current = Best();
  return current;
}

const KernelTable* TableOf(const IsaEntry& entry, DType dtype) {
  return dtype == DType::kBFloat16 ? entry.bf16 : entry.others;
}

}  // namespace

const KernelTable* KernelsFor(Isa isa, DType dtype) {
  const IsaEntry* entry = Find(isa);
  return entry == nullptr ? nullptr : TableOf(*entry, dtype);
}

const KernelTable& CurrentKernels(DType dtype) {
  return *TableOf(*Current().load(std::memory_order_acquire), dtype);
}

std::string_view IsaName(Isa isa) {
  constexpr std::string_view kNames[] = {"portable", "avx2", "avx512", "avx512_bf16"};
  const auto index = static_cast<size_t>(isa);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const IsaEntry& entry : kIsas) {
    if (entry.is_here()) isas.push_back(entry.isa);
  }
  return isas;
}

Isa GetIsa() { return Current().load(std::memory_order_acquire)->isa; }

Status SetIsa(Isa isa) {
  const IsaEntry* entry = Find(isa);
  if (entry == nullptr) {
    return InvalidArgument("isa: expected an instruction set of this processor, got \"",
                           IsaName(isa), "\"");
  }
  Current().store(entry, std::memory_order_release);
  return Status();
}

}  // namespace kindling
