// Compiled with AVX-512F, BW and BF16 (see kernels_avx2.cc): bf16 operands are multiplied as they
// are; what stands between the products is the fp32 arithmetic of AVX-512.
#include "kernels/make_table.h"
#include "kernels/operands_avx512_bf16.h"
#include "kernels/tables.h"

namespace kindling {

struct Avx512Bf16Set;

constinit const KernelTable kAvx512Bf16Kernels =
    MakeTable<Avx512Bf16Operands<Avx512Bf16Set>>(kScoreStride / 2);

}  // namespace kindling
