// Which instruction set runs: chosen per process.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "base/message.h"
#include "kernels/cpu.h"
#include "kernels/kernels.h"
#include "kernels/tables.h"
#include "kindling/runtime.h"

namespace kindling {
namespace {

// One instruction set: its name, and its tables for bf16 operands and for others; null where the
// build lacks it.
struct IsaEntry {
  Isa isa;
  std::string_view name;
  const KernelTable* bf16;
  const KernelTable* others;
};

#ifdef KINDLING_HAVE_X86
#define KINDLING_X86_TABLE(table) &(table)
#else
#define KINDLING_X86_TABLE(table) nullptr
#endif

// In the order of Isa.
constexpr IsaEntry kIsas[] = {
    {Isa::kPortable, "portable", &kPortableKernels, &kPortableKernels},
    {Isa::kAvx2, "avx2", KINDLING_X86_TABLE(kAvx2Kernels), KINDLING_X86_TABLE(kAvx2Kernels)},
    {Isa::kAvx512, "avx512", KINDLING_X86_TABLE(kAvx512Kernels),
     KINDLING_X86_TABLE(kAvx512Kernels)},
    {Isa::kAvx512Bf16, "avx512_bf16", KINDLING_X86_TABLE(kAvx512Bf16Kernels),
     KINDLING_X86_TABLE(kAvx512Kernels)},
    {Isa::kAmxBf16, "amx_bf16", KINDLING_X86_TABLE(kAmxBf16Kernels),
     KINDLING_X86_TABLE(kAvx512Kernels)},
};

#undef KINDLING_X86_TABLE

const IsaEntry* EntryOf(Isa isa) {
  const auto index = static_cast<size_t>(isa);
  return index < std::size(kIsas) ? &kIsas[index] : nullptr;
}

const std::vector<Isa>& IsasOfThisCpu() {
#ifdef KINDLING_EMULATED_AVX512
  static const std::vector<Isa> isas = RankIsas({.has_avx2 = ThisCpu().has_avx2,
                                                 .has_avx512 = true,
                                                 .has_avx512_bf16 = true,
                                                 .has_amx_bf16 = true});
#else
  static const std::vector<Isa> isas = RankIsas(ThisCpu());
#endif
  return isas;
}

// Null where the build or the processor lacks it.
const IsaEntry* Find(Isa isa) {
  const std::vector<Isa>& isas = IsasOfThisCpu();
  return std::find(isas.begin(), isas.end(), isa) == isas.end() ? nullptr : EntryOf(isa);
}

std::atomic<const IsaEntry*>& Current() {
  static std::atomic<const IsaEntry*> current = EntryOf(IsasOfThisCpu().back());
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
  const IsaEntry* entry = EntryOf(isa);
  return entry == nullptr ? "unknown" : entry->name;
}

std::vector<Isa> SupportedIsas() { return IsasOfThisCpu(); }

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
