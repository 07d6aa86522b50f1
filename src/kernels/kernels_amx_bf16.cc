// Compiled with AMX-BF16 besides what kernels_avx512_bf16.cc is compiled with: the same operands
// and the same arithmetic between the products, which are those of matrix tiles.
#include "kernels/make_table.h"
#include "kernels/operands_avx512_bf16.h"
#include "kernels/tables.h"
#include "kernels/tile_products_amx.h"

namespace kindling {

struct AmxBf16Set;

constinit const KernelTable kAmxBf16Kernels =
    MakeTable<Avx512Bf16Operands<AmxBf16Set>, AmxProducts<AmxBf16Set>>(kScoreStride / 2);

}  // namespace kindling
