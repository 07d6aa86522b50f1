// How operators run: threads, instruction sets, workspace.
#ifndef KINDLING_RUNTIME_H_
#define KINDLING_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kindling/export.h"
#include "kindling/status.h"

namespace kindling {

// Per-call options of the operators. None of them changes a bit of any result.
struct RunOptions {
  int64_t num_threads = 0;     // OS threads including the caller's; 0: GetNumThreads()
  void* workspace = nullptr;   // 64-byte aligned; null: the library takes one from its own cache
  size_t workspace_bytes = 0;  // size of `workspace`, at least what the ...WorkspaceBytes call says
};

// Upper bound of num_threads.
inline constexpr int64_t kMaxThreads = 1024;

// Sets the process-wide default of RunOptions::num_threads.
// Errors: kInvalidArgument outside [1, kMaxThreads].
KINDLING_API Status SetNumThreads(int64_t num_threads);
// The default: what SetNumThreads set, else the processors that this process may use.
KINDLING_API int64_t GetNumThreads();

// An instruction set that the library has kernels for.
enum class Isa : int32_t {
  kPortable = 0,    // standard C++, any processor
  kAvx2 = 1,        // AVX2, FMA, F16C
  kAvx512 = 2,      // AVX-512F besides
  kAvx512Bf16 = 3,  // AVX-512 BW and BF16 besides: bf16 q and k are multiplied as they are
  kAmxBf16 = 4,     // AMX-BF16 besides, as the system grants it: they are multiplied in tiles
};

// "portable", "avx2", "avx512", "avx512_bf16", "amx_bf16": the names SetIsa takes.
KINDLING_API std::string_view IsaName(Isa isa);
// The instruction sets that this processor can run, best last: by the rate at which it multiplies
// bf16 with each. Fixed by what the processor is, never by a measurement.
KINDLING_API std::vector<Isa> SupportedIsas();
// The one that operators use: the best, unless SetIsa chose another.
KINDLING_API Isa GetIsa();
// Makes later calls of this process use `isa`. Results are reproducible for one instruction set.
// Errors: kInvalidArgument if the processor lacks it.
KINDLING_API Status SetIsa(Isa isa);

}  // namespace kindling

#endif  // KINDLING_RUNTIME_H_
