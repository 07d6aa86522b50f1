// The metadata operator: descriptors are checked, then values (rows and longest key length of the
// batch); then rows are split and the record is written.
#include "kindling/metadata.h"

#include <bit>

#include "base/guard.h"
#include "base/message.h"
#include "plan/balance.h"
#include "plan/cost_model.h"
#include "plan/record.h"
#include "plan/split.h"
#include "problem/lengths.h"
#include "problem/tensor_memory.h"

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
  KINDLING_RETURN_IF_ERROR(CheckData("metadata", metadata.data, DType::kInt32));
  const Result<Metadata> record = GenMetadata(lengths.value(), args);
  if (!record.ok()) return record.status();
  StoreWords(std::bit_cast<MetadataWords>(record.value()), metadata);
  return Status();
}

}  // namespace kindling
