// Compiled with AVX2, FMA and F16C, so nothing here may run before dispatch.cc has seen that the
// processor has them; the table itself is constant-initialised.
#include "kernels/make_table.h"
#include "kernels/operands_fp32.h"
#include "kernels/tables.h"
#include "kernels/vec_avx2.h"

namespace kindling {

constinit const KernelTable kAvx2Kernels = MakeTable<Fp32Operands<Avx2Vec>>(kScoreStride);

}  // namespace kindling
