#include "problem/lengths.h"

#include <algorithm>

#include "base/checked_math.h"
#include "base/message.h"
#include "kindling/metadata.h"
#include "problem/tensor_memory.h"

namespace kindling {
namespace {

constexpr int64_t kMaxHeads = 128;
constexpr int64_t kMaxCmpRatio = 128;

Status CheckRange(std::string_view name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return Status();
  return InvalidArgument(name, ": expected in [", low, ", ", high, "], got ", value);
}

Status CheckNotNegative(std::string_view name, int64_t value) {
  if (value >= 0) return Status();
  return InvalidArgument(name, ": expected >= 0, got ", value);
}

Result<Layout> ParseLayout(std::string_view name, std::string_view text) {
  if (text == "BSND") return Layout::kBsnd;
  if (text == "TND") return Layout::kTnd;
  if (text.data() == nullptr) {
    return InvalidArgument(name, ": expected \"BSND\" or \"TND\", got null");
  }
  return InvalidArgument(name, ": expected \"BSND\" or \"TND\", got \"", text.substr(0, 32), "\"");
}

Result<IntVector> BindIntVector(std::string_view name, const ConstTensor& tensor) {
  if (!tensor.has_elements()) return IntVector();
  if (tensor.rank != 1) {
    return InvalidArgument(name, ": expected rank 1, got rank ", tensor.rank, " with shape ",
                           ShapeString(tensor));
  }
  if (tensor.dtype != DType::kInt32) {
    return InvalidDtype(name, ": expected dtype int32, got ", DTypeName(tensor.dtype));
  }
  if (tensor.shape[0] < 0) {
    return InvalidArgument(name, ": expected a length >= 0, got ", tensor.shape[0]);
  }
  KINDLING_RETURN_IF_ERROR(CheckStrides(name, tensor));
  IntVector vector;
  vector.data = static_cast<const int32_t*>(tensor.data);
  vector.stride = tensor.strides[0];
  vector.size = tensor.shape[0];
  return vector;
}

Status CheckMetadataTensor(const ConstTensor& metadata) {
  if (metadata.rank != 1) {
    return InvalidArgument("metadata: expected rank 1, got rank ", metadata.rank);
  }
  if (metadata.dtype != DType::kInt32) {
    return InvalidDtype("metadata: expected dtype int32, got ", DTypeName(metadata.dtype));
  }
  if (metadata.shape[0] != kMetadataWords) {
    return InvalidArgument("metadata: expected length ", kMetadataWords, ", got ",
                           metadata.shape[0]);
  }
  if (metadata.strides[0] == 0) {
    return InvalidArgument("metadata: expected memory for each of ", kMetadataWords,
                           " words, got stride 0");
  }
  return CheckStrides("metadata", metadata);
}

struct BatchCount {
  int64_t count = 0;
  std::string_view name;      // the argument it comes from
  std::string_view relation;  // how it comes from there
};

BatchCount CountBatches(const SideLengths& side, const DenseSide& dense) {
  if (side.seqused.present()) return {side.seqused.size, side.seqused_name, "its length"};
  if (side.layout == Layout::kTnd) {
    return {side.cu_seqlens.size - 1, side.cu_name, "its length - 1"};
  }
  return {dense.num_batches, dense.batch_name, "its value"};
}

Status CheckCuLength(const SideLengths& side, int64_t num_batches) {
  if (side.layout != Layout::kTnd || !side.seqused.present()) return Status();
  if (side.cu_seqlens.size - 1 == num_batches) return Status();
  return InvalidArgument(side.cu_name, ": expected length ", num_batches + 1,
                         " = the batch count of ", side.seqused_name, " + 1, got ",
                         side.cu_seqlens.size);
}

Status CheckVectorData(std::string_view name, const IntVector& vector) {
  if (!vector.present()) return Status();
  return CheckData(name, vector.data, DType::kInt32);
}

// (30). Decreasing and negative entries are found by one pass without branches; a second one looks
// for the first of them only where there is any.
Status CheckCuValues(std::string_view name, const IntVector& cu) {
  if (!cu.present()) return Status();
  if (cu[0] != 0) return InvalidArgument(name, "[0]: expected 0, got ", cu[0]);
  bool decreasing = false;
  if (cu.stride == 1) {
    for (int64_t i = 1; i < cu.size; ++i) decreasing |= cu.data[i] < cu.data[i - 1];
  } else {
    for (int64_t i = 1; i < cu.size; ++i) decreasing |= cu[i] < cu[i - 1];
  }
  if (!decreasing) return Status();
  for (int64_t i = 1; i < cu.size; ++i) {
    if (cu[i] < 0) return InvalidArgument(name, "[", i, "]: expected >= 0, got ", cu[i]);
    if (cu[i] < cu[i - 1]) {
      return InvalidArgument(name, "[", i, "]: expected >= ", name, "[", i - 1, "] = ", cu[i - 1],
                             ", got ", cu[i]);
    }
  }
  return Status();
}

// (31).
Status CheckUsedValues(const SideLengths& side, int64_t num_batches) {
  if (!side.seqused.present()) return Status();
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const int64_t used = side.seqused[batch];
    const int64_t allocated = side.Allocated(batch);
    if (used < 0 || used > allocated) {
      return InvalidArgument(side.seqused_name, "[", batch, "]: expected in [0, ", allocated,
                             "], the allocated length, got ", used);
    }
  }
  return Status();
}

struct SideTotals {
  int64_t sum = 0;
  int64_t max = 0;
};

SideTotals SumUsed(const SideLengths& side, int64_t num_batches) {
  if (num_batches <= 0) return {};
  if (side.uniform()) {
    return {SaturatingMul(num_batches, side.dense_length), side.dense_length};
  }
  SideTotals totals;
  if (!side.seqused.present() && side.cu_seqlens.stride == 1) {
    const int32_t* cu = side.cu_seqlens.data;
    int32_t longest = 0;
    for (int64_t batch = 0; batch < num_batches; ++batch) {
      longest = std::max(longest, cu[batch + 1] - cu[batch]);
    }
    return {cu[num_batches], longest};
  }
  for (int64_t batch = 0; batch < num_batches; ++batch) {
    const int64_t used = side.Used(batch);
    totals.sum += used;
    totals.max = std::max(totals.max, used);
  }
  return totals;
}

// (33). Used lengths are no longer, and those of TND fit by their type.
Status CheckAllocated(const SideLengths& side) {
  if (side.layout == Layout::kTnd || side.dense_length <= kInt32Max) return Status();
  return InvalidArgument(side.length_name, ": expected a length <= ", kInt32Max, ", got ",
                         side.dense_length);
}

}  // namespace

Result<Attributes> CheckSequenceAttributes(const SequenceArgs& args) {
  if (args.mask_mode != static_cast<int64_t>(MaskMode::kNone) &&
      args.mask_mode != static_cast<int64_t>(MaskMode::kCausal)) {
    return InvalidArgument("mask_mode: expected 0 or 3, got ", args.mask_mode);
  }
  KINDLING_RETURN_IF_ERROR(CheckRange("cmp_ratio", args.cmp_ratio, 1, kMaxCmpRatio));
  const Result<Layout> layout_q = ParseLayout("layout_q", args.layout_q);
  if (!layout_q.ok()) return layout_q.status();
  const Result<Layout> layout_k = ParseLayout("layout_k", args.layout_k);
  if (!layout_k.ok()) return layout_k.status();
  return Attributes{layout_q.value(), layout_k.value()};
}

Result<Lengths> DescribeLengths(const SequenceArgs& args, const Attributes& attributes,
                                const DenseSide& dense_q, const DenseSide& dense_k,
                                const ConstTensor* metadata_out) {
  const bool causal = args.mask_mode == static_cast<int64_t>(MaskMode::kCausal);
  if (attributes.layout_q == Layout::kTnd && !args.cu_seqlens_q.has_elements()) {
    return InvalidArgument("cu_seqlens_q: expected a tensor for layout_q \"TND\", got none");
  }
  if (attributes.layout_k == Layout::kTnd && !args.cu_seqlens_k.has_elements()) {
    return InvalidArgument("cu_seqlens_k: expected a tensor for layout_k \"TND\", got none");
  }
  if (causal && args.cmp_ratio != 1 && !args.cmp_residual_k.has_elements()) {
    return InvalidArgument("cmp_residual_k: expected a tensor for mask_mode 3 with cmp_ratio ",
                           args.cmp_ratio, ", got none");
  }
  if (metadata_out != nullptr && (metadata_out->rank < 1 || !metadata_out->has_elements())) {
    return InvalidArgument("metadata: expected an int32 tensor of shape (", kMetadataWords,
                           ",), got ", metadata_out->rank < 0 ? "none" : "one without elements");
  }

  Lengths lengths;
  lengths.mask_mode = causal ? MaskMode::kCausal : MaskMode::kNone;
  lengths.cmp_ratio = args.cmp_ratio;
  lengths.q.layout = attributes.layout_q;
  lengths.q.dense_length = dense_q.length;
  lengths.q.length_name = dense_q.length_name;
  lengths.q.cu_name = "cu_seqlens_q";
  lengths.q.seqused_name = "seqused_q";
  lengths.k.layout = attributes.layout_k;
  lengths.k.dense_length = dense_k.length;
  lengths.k.length_name = dense_k.length_name;
  lengths.k.cu_name = "cu_seqlens_k";
  lengths.k.seqused_name = "seqused_k";
  const struct {
    std::string_view name;
    const ConstTensor& tensor;
    IntVector& vector;
  } bindings[] = {
      {"cu_seqlens_q", args.cu_seqlens_q, lengths.q.cu_seqlens},
      {"cu_seqlens_k", args.cu_seqlens_k, lengths.k.cu_seqlens},
      {"seqused_q", args.seqused_q, lengths.q.seqused},
      {"seqused_k", args.seqused_k, lengths.k.seqused},
      {"cmp_residual_k", args.cmp_residual_k, lengths.residual},
  };
  for (const auto& binding : bindings) {
    const Result<IntVector> vector = BindIntVector(binding.name, binding.tensor);
    if (!vector.ok()) return vector.status();
    binding.vector = vector.value();
  }
  if (metadata_out != nullptr) KINDLING_RETURN_IF_ERROR(CheckMetadataTensor(*metadata_out));

  const BatchCount batch_q = CountBatches(lengths.q, dense_q);
  const BatchCount batch_k = CountBatches(lengths.k, dense_k);
  if (batch_q.count != batch_k.count) {
    return InvalidArgument(batch_k.name, ": expected the batch count of ", batch_q.name, ", ",
                           batch_q.count, " (", batch_q.relation, "), got ", batch_k.count, " (",
                           batch_k.relation, ")");
  }
  lengths.num_batches = batch_q.count;
  lengths.batch_name = batch_q.name;
  KINDLING_RETURN_IF_ERROR(CheckCuLength(lengths.q, lengths.num_batches));
  KINDLING_RETURN_IF_ERROR(CheckCuLength(lengths.k, lengths.num_batches));
  if (lengths.residual.present() && lengths.residual.size != lengths.num_batches) {
    return InvalidArgument("cmp_residual_k: expected length ", lengths.num_batches,
                           " = the batch count, got ", lengths.residual.size);
  }
  return lengths;
}

Result<Lengths> DescribeMetadataArgs(const MetadataArgs& args, const ConstTensor* metadata_out,
                                     int64_t head_dim) {
  KINDLING_RETURN_IF_ERROR(CheckRange("num_heads_q", args.num_heads_q, 1, kMaxHeads));
  if (args.num_heads_k != 1) {
    return InvalidArgument("num_heads_k: expected 1, got ", args.num_heads_k);
  }
  if (args.head_dim != head_dim) {
    return InvalidArgument("head_dim: expected ", head_dim, ", got ", args.head_dim);
  }
  KINDLING_RETURN_IF_ERROR(CheckNotNegative("batch_size", args.batch_size));
  KINDLING_RETURN_IF_ERROR(CheckNotNegative("max_seqlen_q", args.max_seqlen_q));
  KINDLING_RETURN_IF_ERROR(CheckNotNegative("max_seqlen_k", args.max_seqlen_k));
  const Result<Attributes> attributes = CheckSequenceAttributes(args);
  if (!attributes.ok()) return attributes.status();
  KINDLING_RETURN_IF_ERROR(CheckRange("num_cores", args.num_cores, 1, kInt32Max));
  KINDLING_RETURN_IF_ERROR(CheckRange("num_vector_cores", args.num_vector_cores, 1, kInt32Max));

  const DenseSide dense_q{args.batch_size, "batch_size", args.max_seqlen_q, "max_seqlen_q"};
  const DenseSide dense_k{args.batch_size, "batch_size", args.max_seqlen_k, "max_seqlen_k"};
  const Result<Lengths> described =
      DescribeLengths(args, attributes.value(), dense_q, dense_k, metadata_out);
  if (!described.ok()) return described.status();
  const Lengths& lengths = described.value();
  if (lengths.q.layout == Layout::kBsnd) {
    if (lengths.num_batches <= 0) {
      return InvalidArgument(lengths.batch_name,
                             ": expected a batch count >= 1 for layout_q \"BSND\", got ",
                             lengths.num_batches);
    }
    if (args.max_seqlen_q <= 0) {
      return InvalidArgument("max_seqlen_q: expected >= 1 for layout_q \"BSND\", got ",
                             args.max_seqlen_q);
    }
  }
  if (lengths.k.layout == Layout::kBsnd && args.max_seqlen_k <= 0) {
    return InvalidArgument("max_seqlen_k: expected >= 1 for layout_k \"BSND\", got ",
                           args.max_seqlen_k);
  }
  if (args.batch_size > 0 && args.batch_size != lengths.num_batches) {
    return InvalidArgument("batch_size: expected 0 or ", lengths.num_batches,
                           " = the batch count of ", lengths.batch_name, ", got ", args.batch_size);
  }
  return described;
}

Result<LengthTotals> CheckLengthValues(const Lengths& lengths) {
  KINDLING_RETURN_IF_ERROR(CheckVectorData(lengths.q.cu_name, lengths.q.cu_seqlens));
  KINDLING_RETURN_IF_ERROR(CheckVectorData(lengths.k.cu_name, lengths.k.cu_seqlens));
  KINDLING_RETURN_IF_ERROR(CheckVectorData(lengths.q.seqused_name, lengths.q.seqused));
  KINDLING_RETURN_IF_ERROR(CheckVectorData(lengths.k.seqused_name, lengths.k.seqused));
  KINDLING_RETURN_IF_ERROR(CheckVectorData("cmp_residual_k", lengths.residual));
  KINDLING_RETURN_IF_ERROR(CheckCuValues(lengths.q.cu_name, lengths.q.cu_seqlens));
  KINDLING_RETURN_IF_ERROR(CheckCuValues(lengths.k.cu_name, lengths.k.cu_seqlens));
  KINDLING_RETURN_IF_ERROR(CheckUsedValues(lengths.q, lengths.num_batches));
  KINDLING_RETURN_IF_ERROR(CheckUsedValues(lengths.k, lengths.num_batches));
  for (int64_t batch = 0; batch < lengths.residual.size; ++batch) {
    const int64_t residual = lengths.residual[batch];
    if (residual < 0 || residual >= lengths.cmp_ratio) {
      return InvalidArgument("cmp_residual_k[", batch, "]: expected in [0, ", lengths.cmp_ratio - 1,
                             "], below cmp_ratio, got ", residual);
    }
  }
  const SideTotals rows = SumUsed(lengths.q, lengths.num_batches);
  const SideTotals keys = SumUsed(lengths.k, lengths.num_batches);
  KINDLING_RETURN_IF_ERROR(CheckAllocated(lengths.q));
  KINDLING_RETURN_IF_ERROR(CheckAllocated(lengths.k));
  if (rows.sum > kInt32Max) {
    return InvalidArgument(
        lengths.q.seqused.present() ? lengths.q.seqused_name : lengths.batch_name,
        ": expected a total of at most ", kInt32Max, " rows, got ", rows.sum,
        rows.sum == kInt64Max ? " or more" : "");
  }
  return LengthTotals{rows.sum, keys.max};
}

}  // namespace kindling
