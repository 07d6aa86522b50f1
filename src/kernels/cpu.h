// What the processor is, and which instruction sets it runs best.
#ifndef KINDLING_SRC_KERNELS_CPU_H_
#define KINDLING_SRC_KERNELS_CPU_H_

#include <vector>

#include "kindling/runtime.h"

namespace kindling {

// What the choice between instruction sets rests on.
struct Cpu {
  bool is_intel = false;
  bool has_avx2 = false;  // with FMA and F16C
  bool has_avx512 = false;
  bool has_avx512_bf16 = false;  // with BW
  bool has_amx_bf16 = false;     // and the operating system grants its registers
};

// This processor. Asks Linux for the registers of AMX, once per process, where it has them.
const Cpu& ThisCpu();

// The sets that `cpu` can run, best last.
std::vector<Isa> RankIsas(const Cpu& cpu);

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_CPU_H_
