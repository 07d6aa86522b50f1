#include "kernels/tables.h"
#include "kernels/tile_kernels.h"
#include "kernels/vec_portable.h"

namespace kindling {

constinit const KernelTable kPortableKernels = TileKernels<PortableVec>::Table(Isa::kPortable);

}  // namespace kindling
