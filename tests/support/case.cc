#include "support/case.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <ostream>
#include <sstream>
#include <utility>

#include "support/random.h"

namespace kindling::test {
namespace {

// A spelling for every value of an enumeration.
template <class Enum>
using Names = std::vector<std::pair<std::string_view, Enum>>;

const Names<Layout> kLayouts = {{"TND", Layout::kTnd}, {"BSND", Layout::kBsnd}};
const Names<DType> kDTypes = {{"fp32", DType::kFloat32},
                              {"fp16", DType::kFloat16},
                              {"bf16", DType::kBFloat16},
                              {"fp64", DType::kFloat64}};
const Names<Spread> kSpreads = {{"dense", Spread::kDense},
                                {"gaps", Spread::kGaps},
                                {"reversed", Spread::kReversed},
                                {"transposed", Spread::kTransposed}};
const Names<MaskMode> kMasks = {{"0", MaskMode::kNone}, {"3", MaskMode::kCausal}};
const Names<bool> kBools = {{"no", false}, {"yes", true}};

template <class Enum>
std::string_view NameOf(const Names<Enum>& names, Enum value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "?";
}

bool Read(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

bool Read(std::string_view text, std::vector<int64_t>& values) {
  values.clear();
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (!Read(text.substr(0, comma), values.emplace_back())) return false;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return true;
}

template <class Enum>
bool Read(std::string_view text, const Names<Enum>& names, Enum& value) {
  for (const auto& [name, known] : names) {
    if (name == text) {
      value = known;
      return true;
    }
  }
  return false;
}

std::string Join(const std::vector<int64_t>& values) {
  std::string out;
  for (const int64_t value : values) out += (out.empty() ? "" : ",") + std::to_string(value);
  return out;
}

// Allocated length of each batch of one side.
std::vector<int64_t> Allocated(Layout layout, const std::vector<int64_t>& used, int64_t spare) {
  std::vector<int64_t> allocated = used;
  const int64_t longest = used.empty() ? 0 : *std::max_element(used.begin(), used.end());
  for (int64_t& length : allocated) length = (layout == Layout::kTnd ? length : longest) + spare;
  return allocated;
}

std::vector<int64_t> PrefixSums(const std::vector<int64_t>& values) {
  std::vector<int64_t> sums = {0};
  for (const int64_t value : values) sums.push_back(sums.back() + value);
  return sums;
}

std::vector<int64_t> Concat(std::vector<int64_t> front, const std::vector<int64_t>& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

// Extents before the rest: {B, S} or {T}.
std::vector<int64_t> SideShape(Layout layout, const std::vector<int64_t>& used, int64_t spare) {
  const std::vector<int64_t> allocated = Allocated(layout, used, spare);
  if (layout == Layout::kTnd) return {PrefixSums(allocated).back()};
  return {static_cast<int64_t>(used.size()), allocated.empty() ? 0 : allocated[0]};
}

}  // namespace

std::string ToString(const Case& spec) {
  std::ostringstream out;
  out << "q=" << NameOf(kLayouts, spec.layout_q) << " k=" << NameOf(kLayouts, spec.layout_k)
      << " dtype=" << NameOf(kDTypes, spec.dtype) << " mask=" << NameOf(kMasks, spec.mask_mode)
      << " ratio=" << spec.cmp_ratio << " heads=" << spec.num_heads
      << " key_heads=" << spec.num_key_heads << " dim=" << spec.head_dim
      << " rows=" << Join(spec.num_rows) << " keys=" << Join(spec.num_keys)
      << " residual=" << Join(spec.residual) << " spare_rows=" << spec.spare_rows
      << " spare_keys=" << spec.spare_keys << " spare_columns=" << spec.spare_columns
      << " spread=" << NameOf(kSpreads, spec.spread)
      << " row_scale=" << NameOf(kBools, spec.row_scale)
      << " wide_grads=" << NameOf(kBools, spec.wide_grads) << " seed=" << spec.seed;
  return out.str();
}

std::optional<Case> ParseCase(std::string_view text) {
  Case spec;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == word.npos) return std::nullopt;
    const std::string key = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    bool known = false;
    if (key == "q") known = Read(value, kLayouts, spec.layout_q);
    if (key == "k") known = Read(value, kLayouts, spec.layout_k);
    if (key == "dtype") known = Read(value, kDTypes, spec.dtype);
    if (key == "mask") known = Read(value, kMasks, spec.mask_mode);
    if (key == "ratio") known = Read(value, spec.cmp_ratio);
    if (key == "heads") known = Read(value, spec.num_heads);
    if (key == "key_heads") known = Read(value, spec.num_key_heads);
    if (key == "dim") known = Read(value, spec.head_dim);
    if (key == "rows") known = Read(value, spec.num_rows);
    if (key == "keys") known = Read(value, spec.num_keys);
    if (key == "residual") known = Read(value, spec.residual);
    if (key == "spare_rows") known = Read(value, spec.spare_rows);
    if (key == "spare_keys") known = Read(value, spec.spare_keys);
    if (key == "spare_columns") known = Read(value, spec.spare_columns);
    if (key == "spread") known = Read(value, kSpreads, spec.spread);
    if (key == "row_scale") known = Read(value, kBools, spec.row_scale);
    if (key == "wide_grads") known = Read(value, kBools, spec.wide_grads);
    if (key == "seed") {
      spec.seed = value;
      known = true;
    }
    if (!known) return std::nullopt;
  }
  if (spec.num_rows.size() != spec.num_keys.size()) return std::nullopt;
  return spec;
}

std::ostream& operator<<(std::ostream& out, const Case& spec) { return out << ToString(spec); }

std::string ReproduceCommand(const Case& spec) {
  return "KINDLING_CASE='" + ToString(spec) + "' " + program_invocation_short_name +
         " --gtest_filter=" + RunningTest();
}

int64_t NumMultiplyAdds(const Case& spec) {
  int64_t num_pairs = 0;
  for (const RowPlace& place : UsedRows(spec)) num_pairs += place.num_visible;
  return num_pairs * spec.num_heads * spec.head_dim;
}

int64_t VisibleKeys(const Case& spec, int64_t batch, int64_t position) {
  const int64_t num_keys = spec.num_keys[batch];
  if (spec.mask_mode == MaskMode::kNone) return num_keys;
  const int64_t residual = spec.residual.empty() ? 0 : spec.residual[batch];
  const int64_t tokens = num_keys * spec.cmp_ratio + residual - spec.num_rows[batch] + position + 1;
  if (tokens < 0) return 0;
  return std::min(tokens / spec.cmp_ratio, num_keys);
}

Placement::Placement(const Case& spec) {
  const std::vector<int64_t> rows = Allocated(spec.layout_q, spec.num_rows, spec.spare_rows);
  const std::vector<int64_t> keys = Allocated(spec.layout_k, spec.num_keys, spec.spare_keys);
  for (int64_t b = 0; b < spec.num_batches(); ++b) {
    batches.push_back({num_allocated_rows, spec.num_rows[b], rows[b], num_allocated_keys,
                       spec.num_keys[b], keys[b]});
    num_allocated_rows += rows[b];
    num_allocated_keys += keys[b];
    if (spec.num_rows[b] > 0) num_columns = std::max(num_columns, spec.num_keys[b]);
  }
  num_columns += spec.spare_columns;
  if (spec.layout_q == Layout::kBsnd && spec.layout_k == Layout::kBsnd) {
    num_columns = keys.empty() ? 0 : keys[0];
  }
}

std::vector<RowPlace> UsedRows(const Case& spec) {
  const Placement placement(spec);
  std::vector<RowPlace> rows;
  for (int64_t b = 0; b < spec.num_batches(); ++b) {
    const Placement::Batch& batch = placement.batches[b];
    for (int64_t s = 0; s < batch.num_rows; ++s) {
      rows.push_back({b, s, batch.row_begin + s, batch.key_begin, VisibleKeys(spec, b, s)});
    }
  }
  return rows;
}

LengthTensors::LengthTensors(const Case& spec) {
  const auto describe = [](Layout layout, const std::vector<int64_t>& used, int64_t spare,
                           OwnedTensor& cu_seqlens, OwnedTensor& seqused) {
    const std::vector<int64_t> allocated = Allocated(layout, used, spare);
    if (layout == Layout::kTnd) cu_seqlens = OwnedTensor::Int32(PrefixSums(allocated));
    if (allocated != used) seqused = OwnedTensor::Int32(used);
  };
  describe(spec.layout_q, spec.num_rows, spec.spare_rows, cu_seqlens_q, seqused_q);
  describe(spec.layout_k, spec.num_keys, spec.spare_keys, cu_seqlens_k, seqused_k);
  if (!spec.residual.empty()) cmp_residual_k = OwnedTensor::Int32(spec.residual);
}

void LengthTensors::Describe(const Case& spec, SequenceArgs& args) const {
  args.cu_seqlens_q = cu_seqlens_q.view();
  args.cu_seqlens_k = cu_seqlens_k.view();
  args.seqused_q = seqused_q.view();
  args.seqused_k = seqused_k.view();
  args.cmp_residual_k = cmp_residual_k.view();
  args.layout_q = NameOf(kLayouts, spec.layout_q);
  args.layout_k = NameOf(kLayouts, spec.layout_k);
  args.mask_mode = static_cast<int64_t>(spec.mask_mode);
  args.cmp_ratio = spec.cmp_ratio;
}

OwnedTensor MakeRecord(const Case& spec, int64_t num_cores, PlanPolicy policy) {
  const Placement placement(spec);
  const LengthTensors lengths(spec);
  MetadataArgs args;
  lengths.Describe(spec, args);
  args.num_heads_q = 1;
  args.num_heads_k = 1;
  args.head_dim = 128;
  args.batch_size = spec.num_batches();
  args.max_seqlen_q = placement.batches.empty() ? 0 : placement.batches[0].num_allocated_rows;
  args.max_seqlen_k = placement.batches.empty() ? 0 : placement.batches[0].num_allocated_keys;
  args.num_cores = num_cores;
  args.policy = policy;
  OwnedTensor record(DType::kInt32, {kMetadataWords});
  const Status status = MakeMetadata(args, record.view());
  EXPECT_TRUE(status.ok()) << status.message() << "\n" << ToString(spec);
  return record;
}

std::vector<int64_t> RowShape(const Case& spec, std::vector<int64_t> rest) {
  return Concat(SideShape(spec.layout_q, spec.num_rows, spec.spare_rows), rest);
}

std::vector<int64_t> KeyShape(const Case& spec, std::vector<int64_t> rest) {
  return Concat(SideShape(spec.layout_k, spec.num_keys, spec.spare_keys), rest);
}

std::vector<int64_t> LseShape(const Case& spec, std::vector<int64_t> rest) {
  std::vector<int64_t> shape = SideShape(spec.layout_q, spec.num_rows, spec.spare_rows);
  shape.insert(shape.end() - 1, 1);
  return Concat(shape, rest);
}

}  // namespace kindling::test
