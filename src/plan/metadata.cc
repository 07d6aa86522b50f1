// The metadata operator in its three stages: Prepare (descriptors, then values), BalanceSchedule
// (rows and longest key length of the batch), GenMetadata (split, write).
#include "kindling/metadata.h"

#include <cstring>

#include "base/message.h"
#include "plan/split.h"
#include "problem/lengths.h"

namespace kindling {
namespace {

Result<Metadata> GenMetadata(const Lengths& lengths, int64_t num_cores) {
  const Result<LengthTotals> schedule = CheckLengthValues(lengths);
  if (!schedule.ok()) return schedule.status();
  return SplitRows(schedule.value().num_rows, num_cores, schedule.value().max_num_keys);
}

// Writes the words of `record` to a dense or strided int32 vector.
void Store(const Metadata& record, const Tensor& metadata) {
  int32_t words[kMetadataWords];
  std::memcpy(words, &record, sizeof(record));
  auto* out = static_cast<int32_t*>(metadata.data);
  for (int64_t word = 0; word < kMetadataWords; ++word)
    out[word * metadata.strides[0]] = words[word];
}

}  // namespace

Result<Metadata> MakeMetadata(const MetadataArgs& args) {
  const Result<Lengths> lengths = DescribeMetadataArgs(args, nullptr);
  if (!lengths.ok()) return lengths.status();
  return GenMetadata(lengths.value(), args.num_cores);
}

Status MakeMetadata(const MetadataArgs& args, const Tensor& metadata) {
  const ConstTensor view = metadata;
  const Result<Lengths> lengths = DescribeMetadataArgs(args, &view);
  if (!lengths.ok()) return lengths.status();
  if (metadata.data == nullptr) {
    return InvalidArgument("metadata: expected a data pointer, got null");
  }
  const Result<Metadata> record = GenMetadata(lengths.value(), args.num_cores);
  if (!record.ok()) return record.status();
  Store(record.value(), metadata);
  return Status();
}

}  // namespace kindling
