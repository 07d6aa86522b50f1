// The tables that the translation units of the instruction sets define. Only dispatch.cc and they
// include this.
#ifndef KINDLING_SRC_KERNELS_TABLES_H_
#define KINDLING_SRC_KERNELS_TABLES_H_

#include "kernels/kernels.h"

namespace kindling {

extern const KernelTable kPortableKernels;
#ifdef KINDLING_HAVE_X86
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kAvx512Bf16Kernels;  // bf16 operands
extern const KernelTable kAmxBf16Kernels;     // bf16 operands
#endif

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_TABLES_H_
