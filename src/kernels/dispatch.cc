// Which instruction set runs: found once per question, chosen per process.
#ifdef KINDLING_HAVE_AVX2
#include <cpuid.h>
#endif

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/tables.h"
#include "kindling/runtime.h"

namespace kindling {
namespace {

constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2};

#ifdef KINDLING_HAVE_AVX2
// Clang 14's __builtin_cpu_supports does not know f16c.
bool HasF16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool ProcessorHas(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
#ifdef KINDLING_HAVE_AVX2
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
#else
      return false;
#endif
  }
  return false;
}

const KernelTable* TableOf(Isa isa) {
#ifdef KINDLING_HAVE_AVX2
  if (isa == Isa::kAvx2) return &kAvx2Kernels;
#endif
  return isa == Isa::kPortable ? &kPortableKernels : nullptr;
}

const KernelTable* BestTable() {
  const KernelTable* best = &kPortableKernels;
  for (Isa isa : kAllIsas) {
    if (const KernelTable* table = KernelsFor(isa)) best = table;
  }
  return best;
}

std::atomic<const KernelTable*>& Current() {
  static std::atomic<const KernelTable*> current = BestTable();
  return current;
}

}  // namespace

const KernelTable* KernelsFor(Isa isa) { return ProcessorHas(isa) ? TableOf(isa) : nullptr; }

const KernelTable& CurrentKernels() { return *Current().load(std::memory_order_acquire); }

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
  }
  return "unknown";
}

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (KernelsFor(isa) != nullptr) isas.push_back(isa);
  }
  return isas;
}

Isa GetIsa() { return CurrentKernels().isa; }

Status SetIsa(Isa isa) {
  const KernelTable* table = KernelsFor(isa);
  if (table == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "isa: expected an instruction set of this processor, got \"" +
                      std::string(IsaName(isa)) + "\"");
  }
  Current().store(table, std::memory_order_release);
  return Status();
}

}  // namespace kindling
