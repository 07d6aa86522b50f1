// Standard C++ for any processor, as far as the vector extension of GCC and Clang is that.
#include "kernels/make_table.h"
#include "kernels/operands_fp32.h"
#include "kernels/tables.h"
#include "kernels/vec_portable.h"

namespace kindling {

constinit const KernelTable kPortableKernels = MakeTable<Fp32Operands<PortableVec>>(kScoreStride);

}  // namespace kindling
