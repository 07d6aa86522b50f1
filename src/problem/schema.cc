#include "kindling/schema.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "kindling/metadata.h"

namespace kindling {
namespace {

using Description = ArgumentDescription;

template <size_t... sizes>
constexpr auto Join(const std::array<Description, sizes>&... parts) {
  std::array<Description, (sizes + ...)> joined{};
  auto* end = joined.data();
  ((end = std::copy(parts.begin(), parts.end(), end)), ...);
  return joined;
}

template <class... Descriptions>
constexpr auto List(const Descriptions&... descriptions) {
  return std::array<Description, sizeof...(descriptions)>{descriptions...};
}

constexpr std::string_view kAnyFloat = "bf16, fp16, fp32 tensor";
constexpr std::string_view kPerRow = "(B,1,S1); (1,T1)";
constexpr std::string_view kPerHead = "(B,S1,N1); (T1,N1)";
constexpr std::string_view kPerKey = "(B,S1,1,S2); (T1,1,>= max n)";

// Which rows see which keys.
constexpr auto kLengths =
    List(Description{"cu_seqlens_q", "input", "int32 tensor", "(B+1,)", "none",
                     "prefix sums of the allocated query lengths, required in TND"},
         Description{"cu_seqlens_k", "input", "int32 tensor", "(B+1,)", "none",
                     "prefix sums of the allocated key lengths, required in TND"},
         Description{"seqused_q", "input", "int32 tensor", "(B,)", "none",
                     "used query lengths, all that is allocated if absent"},
         Description{"seqused_k", "input", "int32 tensor", "(B,)", "none",
                     "used key lengths, all that is allocated if absent"},
         Description{"cmp_residual_k", "input", "int32 tensor", "(B,)", "none",
                     "tokens beyond the last whole compressed key, in [0, cmp_ratio), required in "
                     "mask_mode 3 with cmp_ratio != 1"});
constexpr auto kRowAttributes = List(
    Description{"layout_q", "attribute", "str", "", "BSND",
                "layout of the query side, BSND or TND"},
    Description{"layout_k", "attribute", "str", "", "BSND", "layout of the key side, BSND or TND"},
    Description{"mask_mode", "attribute", "int", "", "0", "0 for no mask, 3 for right-down causal"},
    Description{"cmp_ratio", "attribute", "int", "", "1", "tokens per key, in [1, 128]"});
constexpr auto kRows = Join(kLengths, kRowAttributes);
constexpr auto kRecord =
    List(Description{"metadata", "input", "int32 tensor", "(64,)", "none",
                     "a record for these lengths, a hint who computes which row"});

constexpr auto kIndexer = List(
    Description{"q", "input", kAnyFloat, "(B,S1,N1,D); (T1,N1,D)", "required", "indexer queries"},
    Description{"k", "input", "as q tensor", "(B,S2,1,D); (T2,1,D)", "required", "indexer keys"},
    Description{"w", "input", "fp32 tensor", kPerHead, "required", "head weights"});
constexpr auto kLossRows =
    List(Description{"loss_rows", "output", "fp32 tensor", "as lse", "none", "loss of each row"});

constexpr auto kMetadata = Join(
    List(Description{"num_heads_q", "attribute", "int", "", "required",
                     "indexer query heads N1, in [1, 128]"},
         Description{"num_heads_k", "attribute", "int", "", "required", "key heads N2, must be 1"},
         Description{"head_dim", "attribute", "int", "", "required", "head width D, must be 128"}),
    kLengths,
    List(Description{"batch_size", "attribute", "int", "", "0",
                     "batch count, 0 to take it from the tensors"},
         Description{"max_seqlen_q", "attribute", "int", "", "0",
                     "allocated query length of every batch in BSND, ignored in TND"},
         Description{"max_seqlen_k", "attribute", "int", "", "0",
                     "allocated key length of every batch in BSND, ignored in TND"}),
    kRowAttributes,
    List(Description{"num_cores", "environment", "int", "", "none",
                     "cores of the plan, else those of soc_version, else the host's threads"},
         Description{"policy", "environment", "str", "", "rows",
                     "rows for the compatible plan, balanced for one that balances modelled cost"},
         Description{"soc_version", "environment", "str", "", "none",
                     "device name such as Ascend950... or Ascend910..., chooses defaults only"}));

constexpr auto kSoftmaxLse =
    Join(kIndexer, List(Description{"p", "input", "fp32 tensor", kPerKey, "none", "teacher"}),
         kRows, kRecord,
         List(Description{"lse", "output", "fp32 tensor", kPerRow, "required",
                          "log-sum-exp of the student's logits"}),
         kLossRows);

constexpr auto kKLLossGrad =
    Join(kIndexer,
         List(Description{"p", "input", "fp32 tensor", kPerKey, "required", "teacher"},
              Description{"lse", "input", "fp32 tensor", kPerRow, "required",
                          "the student's log-sum-exp"}),
         kRows, kRecord,
         List(Description{"row_scale", "input", "fp32 tensor", "as lse", "none",
                          "factor of each row's gradients"},
              Description{"dq", "output", "as q, or fp32 tensor", "as q", "required",
                          "gradient with respect to q"},
              Description{"dk", "output", "as q, or fp32 tensor", "as k", "required",
                          "gradient with respect to k"},
              Description{"dw", "output", "fp32 tensor", "as w", "required",
                          "gradient with respect to w"},
              Description{"softmax_out", "output", "fp32 tensor", "as p", "none",
                          "the student's distribution"}),
         kLossRows);

constexpr auto kAttentionTeacher =
    Join(List(Description{"q", "input", kAnyFloat, "(B,S1,G,Dm); (T1,G,Dm)", "required",
                          "queries of the main attention"},
              Description{"k", "input", "as q tensor", "(B,S2,Gk,Dm); (T2,Gk,Dm)", "required",
                          "keys of the main attention, G a multiple of Gk"},
              Description{"lse", "input", "fp32 tensor", "(B,1,S1,G); (1,T1,G)", "none",
                          "log-sum-exp of its scaled scores"}),
         kRows, kRecord,
         List(Description{"softmax_scale", "attribute", "float", "", "1",
                          "factor of the scores before the exponential, mostly Dm ** -0.5"},
              Description{"p", "output", "fp32 tensor", kPerKey, "required", "teacher"}));

struct Operator {
  std::string_view name;
  std::span<const Description> arguments;
};
constexpr Operator kOperators[] = {
    {"make_metadata", kMetadata},
    {"softmax_lse", kSoftmaxLse},
    {"kl_loss_grad", kKLLossGrad},
    {"attention_teacher", kAttentionTeacher},
};
constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kOperators)> names;
  std::transform(std::begin(kOperators), std::end(kOperators), names.begin(),
                 [](const Operator& op) { return op.name; });
  return names;
}();

}  // namespace

std::span<const std::string_view> OperatorNames() { return kNames; }

std::span<const ArgumentDescription> DescribeOperator(std::string_view name) {
  for (const Operator& op : kOperators) {
    if (op.name == name) return op.arguments;
  }
  return {};
}

std::span<const ArgumentDescription> DescribeRows() { return kRows; }

std::span<const ArgumentDescription> DescribeMetadataOperator() { return kMetadata; }

}  // namespace kindling
