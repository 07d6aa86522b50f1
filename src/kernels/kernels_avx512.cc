// Compiled with AVX-512F (see kernels_avx2.cc).
#include "kernels/make_table.h"
#include "kernels/operands_fp32.h"
#include "kernels/tables.h"
#include "kernels/vec_avx512.h"

namespace kindling {

struct Avx512Set;

constinit const KernelTable kAvx512Kernels =
    MakeTable<Fp32Operands<Avx512Vec<Avx512Set>>>(kScoreStride);

}  // namespace kindling
