// The tables that the translation units of the instruction sets define. Only dispatch.cc and they
// include this.
#ifndef KINDLING_SRC_KERNELS_TABLES_H_
#define KINDLING_SRC_KERNELS_TABLES_H_

#include "kernels/kernels.h"

namespace kindling {

extern const KernelTable kPortableKernels;
#ifdef KINDLING_HAVE_AVX2
extern const KernelTable kAvx2Kernels;
#endif

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_TABLES_H_
