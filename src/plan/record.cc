#include "plan/record.h"

#include <bit>
#include <string_view>

#include "base/checked_math.h"
#include "base/message.h"
#include "plan/cost_model.h"
#include "plan/split.h"
#include "problem/tensor_memory.h"

namespace kindling {
namespace {

Status CheckWord(int word, std::string_view name, int64_t expected, int64_t got) {
  if (expected == got) return Status();
  return InvalidArgument("metadata[", word, "]: expected ", name, " = ", expected, ", got ", got);
}

// Words 6..63: all zero, or an extension whose plan covers every row.
Status CheckExtension(const Metadata& metadata, const Problem& problem) {
  for (int word = 11; word < kMetadataWords; ++word) {
    KINDLING_RETURN_IF_ERROR(CheckWord(word, "a reserved word", 0, metadata.reserved[word - 11]));
  }
  if (metadata.extension_tag == 0) {
    KINDLING_RETURN_IF_ERROR(CheckWord(7, "extension_version", 0, metadata.extension_version));
    KINDLING_RETURN_IF_ERROR(CheckWord(8, "law", 0, metadata.law));
    KINDLING_RETURN_IF_ERROR(CheckWord(9, "pair_cost", 0, metadata.pair_cost));
    return CheckWord(10, "row_overhead", 0, metadata.row_overhead);
  }
  if (metadata.extension_tag != kExtensionTag) {
    return InvalidArgument("metadata[6]: expected extension_tag = 0 or ", kExtensionTag, ", got ",
                           metadata.extension_tag);
  }
  KINDLING_RETURN_IF_ERROR(
      CheckWord(7, "extension_version", kExtensionVersion, metadata.extension_version));
  if (metadata.law < static_cast<int32_t>(DealingLaw::kCyclic) ||
      metadata.law > static_cast<int32_t>(DealingLaw::kLevelled)) {
    return InvalidArgument("metadata[8]: expected law in [0, 2], got ", metadata.law);
  }
  if (metadata.pair_cost < 1) {
    return InvalidArgument("metadata[9]: expected pair_cost >= 1, got ", metadata.pair_cost);
  }
  if (metadata.row_overhead < 1) {
    return InvalidArgument("metadata[10]: expected row_overhead >= 1, got ", metadata.row_overhead);
  }
  if (!CostModel{metadata.pair_cost, metadata.row_overhead}.Fits(problem.num_rows(),
                                                                 problem.max_num_keys())) {
    return InvalidArgument("metadata[9]: expected costs whose sum is below 2^63, got pair_cost ",
                           metadata.pair_cost, " and row_overhead ", metadata.row_overhead);
  }
  return Status();
}

}  // namespace

MetadataWords LoadWords(const ConstTensor& metadata) {
  const auto* data = static_cast<const int32_t*>(metadata.data);
  MetadataWords words;
  for (int64_t word = 0; word < kMetadataWords; ++word) {
    words[word] = data[word * metadata.strides[0]];
  }
  return words;
}

void StoreWords(const MetadataWords& words, const Tensor& metadata) {
  auto* data = static_cast<int32_t*>(metadata.data);
  for (int64_t word = 0; word < kMetadataWords; ++word) {
    data[word * metadata.strides[0]] = words[word];
  }
}

Status ValidateMetadata(const Metadata& metadata, const Problem& problem) {
  const int64_t num_rows = problem.num_rows();
  KINDLING_RETURN_IF_ERROR(CheckWord(0, "total_size", num_rows, metadata.total_size));
  int64_t num_cores = 1;
  if (num_rows > 0) {
    const int64_t former = metadata.former_core_size;
    const int64_t slots = num_rows + metadata.remain_core_num;
    if (former < 1) {
      return InvalidArgument("metadata[1]: expected former_core_size >= 1, got ", former);
    }
    if (slots < 1 || slots % former != 0) {
      return InvalidArgument("metadata[3]: expected total_size + remain_core_num to be a positive ",
                             "multiple of former_core_size = ", former, ", got ", slots);
    }
    num_cores = slots / former;
  }
  // Invariant: num_cores <= INT32_MAX + INT32_MAX, and the split of any count is computed in 64
  // bits.
  const Metadata expected = SplitRows(num_rows, num_cores, 0);
  KINDLING_RETURN_IF_ERROR(
      CheckWord(1, "former_core_size", expected.former_core_size, metadata.former_core_size));
  KINDLING_RETURN_IF_ERROR(
      CheckWord(2, "remain_core_size", expected.remain_core_size, metadata.remain_core_size));
  KINDLING_RETURN_IF_ERROR(
      CheckWord(3, "remain_core_num", expected.remain_core_num, metadata.remain_core_num));
  KINDLING_RETURN_IF_ERROR(
      CheckWord(4, "used_core_num", expected.used_core_num, metadata.used_core_num));
  return CheckExtension(metadata, problem);
}

Status CheckMetadataDescriptor(const ConstTensor& metadata) {
  if (!metadata.has_elements()) return Status();
  if (metadata.rank != 1 || metadata.shape[0] != kMetadataWords) {
    return InvalidArgument("metadata: expected shape (", kMetadataWords, ",), got ",
                           ShapeString(metadata));
  }
  if (metadata.dtype != DType::kInt32) {
    return InvalidDtype("metadata: expected dtype int32, got ", DTypeName(metadata.dtype));
  }
  KINDLING_RETURN_IF_ERROR(CheckStrides("metadata", metadata));
  return CheckData("metadata", metadata.data, DType::kInt32);
}

Status CheckMetadataInput(const ConstTensor& metadata, const Problem& problem) {
  if (!metadata.has_elements()) return Status();
  KINDLING_RETURN_IF_ERROR(CheckMetadataDescriptor(metadata));
  return ValidateMetadata(std::bit_cast<Metadata>(LoadWords(metadata)), problem);
}

}  // namespace kindling
