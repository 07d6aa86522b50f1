#include <span>

#include "kindling/metadata.h"

namespace kindling {
namespace {

constexpr ArgumentDescription kArguments[] = {
    {"num_heads_q", "attribute", "int", "", "required", "indexer query heads N1, in [1, 128]"},
    {"num_heads_k", "attribute", "int", "", "required", "key heads N2, must be 1"},
    {"head_dim", "attribute", "int", "", "required", "head width D, must be 128"},
    {"cu_seqlens_q", "input", "int32 tensor", "(B+1,)", "none",
     "prefix sums of the allocated query lengths, required in TND"},
    {"cu_seqlens_k", "input", "int32 tensor", "(B+1,)", "none",
     "prefix sums of the allocated key lengths, required in TND"},
    {"seqused_q", "input", "int32 tensor", "(B,)", "none",
     "used query lengths, all that is allocated if absent"},
    {"seqused_k", "input", "int32 tensor", "(B,)", "none",
     "used key lengths, all that is allocated if absent"},
    {"cmp_residual_k", "input", "int32 tensor", "(B,)", "none",
     "tokens beyond the last whole compressed key, in [0, cmp_ratio), required in mask_mode 3 "
     "with cmp_ratio != 1"},
    {"batch_size", "attribute", "int", "", "0", "batch count, 0 to take it from the tensors"},
    {"max_seqlen_q", "attribute", "int", "", "0",
     "allocated query length of every batch in BSND, ignored in TND"},
    {"max_seqlen_k", "attribute", "int", "", "0",
     "allocated key length of every batch in BSND, ignored in TND"},
    {"layout_q", "attribute", "str", "", "BSND", "layout of the query side, BSND or TND"},
    {"layout_k", "attribute", "str", "", "BSND", "layout of the key side, BSND or TND"},
    {"mask_mode", "attribute", "int", "", "0", "0 for no mask, 3 for right-down causal"},
    {"cmp_ratio", "attribute", "int", "", "1", "tokens per key, in [1, 128]"},
    {"num_cores", "environment", "int", "", "none",
     "cores of the plan, else those of soc_version, else the host's threads"},
    {"policy", "environment", "str", "", "rows",
     "rows for the compatible plan, balanced for one that balances modelled cost"},
    {"soc_version", "environment", "str", "", "none",
     "device name such as Ascend950... or Ascend910..., chooses defaults only"},
};

}  // namespace

std::span<const ArgumentDescription> DescribeMetadataOperator() { return kArguments; }

}  // namespace kindling
