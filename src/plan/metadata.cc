// The metadata operator in its three stages: Prepare (descriptors, then values), BalanceSchedule
// (rows and longest key length of the batch), GenMetadata (split, write).
#include "kindling/metadata.h"

#include <cstring>

#include "base/guard.h"
#include "base/message.h"
#include "plan/balance.h"
#include "plan/cost_model.h"
#include "plan/split.h"
#include "problem/lengths.h"

namespace kindling {
namespace {

// Picks the law of a balanced plan and notes it in the record; where plain dealing is best, the
// record stays the compatible one.
void Balance(const Lengths& lengths, const LengthTotals& totals, int64_t num_cores,
             Metadata& record) {
  const CostModel& costs = kCalibratedCosts;
  if (totals.num_rows <= num_cores || !costs.Fits(totals.num_rows, totals.max_num_keys)) return;
  const DealingLaw law = ChooseLaw(GatherLengths(lengths, totals), num_cores, costs);
  if (law == DealingLaw::kCyclic) return;
  record.extension_tag = kExtensionTag;
  record.extension_version = kExtensionVersion;
  record.law = static_cast<int32_t>(law);
  record.pair_cost = static_cast<int32_t>(costs.pair_cost);
  record.row_overhead = static_cast<int32_t>(costs.row_overhead);
}

Result<Metadata> GenMetadata(const Lengths& lengths, const MetadataArgs& args) {
  const Result<LengthTotals> schedule = CheckLengthValues(lengths);
  if (!schedule.ok()) return schedule.status();
  Metadata record =
      SplitRows(schedule.value().num_rows, args.num_cores, schedule.value().max_num_keys);
  if (args.policy == PlanPolicy::kBalanced) {
    KINDLING_RETURN_IF_ERROR(GuardMemory([&]() -> Status {
      Balance(lengths, schedule.value(), args.num_cores, record);
      return Status();
    }));
  }
  return record;
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
  return GenMetadata(lengths.value(), args);
}

Status MakeMetadata(const MetadataArgs& args, const Tensor& metadata) {
  const ConstTensor view = metadata;
  const Result<Lengths> lengths = DescribeMetadataArgs(args, &view);
  if (!lengths.ok()) return lengths.status();
  KINDLING_RETURN_IF_ERROR(CheckIntData("metadata", metadata.data));
  const Result<Metadata> record = GenMetadata(lengths.value(), args);
  if (!record.ok()) return record.status();
  Store(record.value(), metadata);
  return Status();
}

}  // namespace kindling
