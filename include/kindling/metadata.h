// KLLossGradMetadata: splits the rows of a ragged batch over cores, as a record of 64 integers.
//
// With T rows and C cores: core c processes rows c, c + used, c + 2*used, ...
//   total_size = T, former_core_size = ceil(T/C), remain_core_size = former_core_size - 1,
//   remain_core_num = former_core_size*C - T, used_core_num = min(T, C); all zero when T = 0.
// Source: the interface is that of Huawei CANN's DenseLightningIndexerKLLossGradMetadata.
#ifndef KINDLING_METADATA_H_
#define KINDLING_METADATA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kindling/export.h"
#include "kindling/problem.h"
#include "kindling/schema.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

inline constexpr int64_t kMetadataWords = 64;

// How rows are dealt to cores. Ranks order rows by cost, heaviest first, ties by row number.
enum class DealingLaw : int32_t {
  kCyclic = 0,    // row i to core i mod used: the compatible plan
  kSnake = 1,     // by rank, to cores 0..C-1, then C-1..0, then 0..C-1, ...
  kLevelled = 2,  // the heaviest ranks each to the least loaded core, the rest filled up to a level
};

// The record. Field names follow the vendor's words.
struct Metadata {
  int32_t total_size = 0;        // word 0: rows T
  int32_t former_core_size = 0;  // word 1: rows of each of the first cores
  int32_t remain_core_size = 0;  // word 2: rows of each remaining core
  int32_t remain_core_num = 0;   // word 3: how many cores take remain_core_size rows
  int32_t used_core_num = 0;     // word 4: cores that have rows
  int32_t max_seq_k = 0;         // word 5: longest used key length
  // The extension of a balanced plan. All zero in the compatible plan; a reader that ignores it
  // still covers every row once.
  int32_t extension_tag = 0;           // word 6: kExtensionTag, or 0 where there is none
  int32_t extension_version = 0;       // word 7: kExtensionVersion
  int32_t law = 0;                     // word 8: DealingLaw
  int32_t pair_cost = 0;               // word 9: cost of a row per visible key
  int32_t row_overhead = 0;            // word 10: cost of a row besides its keys
  std::array<int32_t, 53> reserved{};  // words 11..63: zero
};
static_assert(sizeof(Metadata) == kMetadataWords * sizeof(int32_t));
static_assert(offsetof(Metadata, used_core_num) == 4 * sizeof(int32_t));
static_assert(offsetof(Metadata, extension_tag) == 6 * sizeof(int32_t));
static_assert(offsetof(Metadata, reserved) == 11 * sizeof(int32_t));

inline constexpr int32_t kExtensionTag = 0x4b4c504e;  // "KLPN"
inline constexpr int32_t kExtensionVersion = 1;

// Shape and dtype of the record: what the operator's output tensor must be.
struct MetadataShape {
  std::array<int64_t, 1> shape{kMetadataWords};
  DType dtype = DType::kInt32;
};
constexpr MetadataShape InferMetadataShape() { return {}; }

// Makes a plan: the compatible one (PlanPolicy::kRows), or the best of the dealing laws under the
// cost model pair_cost * visible keys + row_overhead (PlanPolicy::kBalanced).
//
// | argument | direction | meaning |
// | args     | in        | lengths, attributes, core count and policy, see MetadataArgs |
//
// Workspace: kRows allocates nothing on success and takes O(B) time, O(1) where lengths are
// uniform.
//   kBalanced takes O(T + B log B) time and O(T + B) bytes while it runs.
// Threads: any number of callers at once.
// Repeats: the record is a function of the arguments.
// Errors: kInvalidArgument, kInvalidDtype (a length tensor that is not int32); the first failing
//   check in the order of docs/metadata.md decides. kOutOfMemory.
// Source: docs/metadata.md.
KINDLING_API Result<Metadata> MakeMetadata(const MetadataArgs& args);

// The same into a caller's int32 tensor of shape (64,). On failure it is left untouched.
KINDLING_API Status MakeMetadata(const MetadataArgs& args, const Tensor& metadata);

// Whether `metadata` is a record for `problem`, made for any number of cores.
// Errors: kInvalidArgument names the first word that is wrong.
KINDLING_API Status ValidateMetadata(const Metadata& metadata, const Problem& problem);

// The rows of one core in the order in which the core takes them: an arithmetic progression or a
// list, either way a random access range of row numbers.
class CoreRows {
 public:
  class Iterator {
   public:
    using value_type = int64_t;
    using difference_type = int64_t;
    Iterator() = default;
    Iterator(const CoreRows* rows, int64_t index) : rows_(rows), index_(index) {}
    int64_t operator*() const { return (*rows_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    Iterator operator++(int) {
      Iterator before = *this;
      ++index_;
      return before;
    }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    const CoreRows* rows_ = nullptr;
    int64_t index_ = 0;
  };

  CoreRows(int64_t first, int64_t step, int64_t size) : first_(first), step_(step), size_(size) {}
  CoreRows(std::shared_ptr<const std::vector<int32_t>> rows, int64_t begin, int64_t size)
      : rows_(std::move(rows)), first_(begin), size_(size) {}

  int64_t size() const { return size_; }
  // Requires: 0 <= index < size().
  int64_t operator[](int64_t index) const {
    return rows_ ? (*rows_)[first_ + index] : first_ + index * step_;
  }
  Iterator begin() const { return Iterator(this, 0); }
  Iterator end() const { return Iterator(this, size_); }

 private:
  std::shared_ptr<const std::vector<int32_t>> rows_;
  int64_t first_ = 0;
  int64_t step_ = 1;
  int64_t size_ = 0;
};

// A validated record, ready to be read. The cyclic law needs no memory; the others order the rows
// once, O(T log T) time and O(T) bytes. Immutable; copies share what was computed.
class KINDLING_API Plan {
 public:
  // Errors: as ValidateMetadata; kOutOfMemory.
  static Result<Plan> Decode(const Metadata& metadata, const Problem& problem);

  DealingLaw law() const;
  int64_t num_rows() const;
  int64_t num_cores() const;  // slots that the record was made for
  // The cost model that the record was made with, the library's own where it names none.
  int64_t pair_cost() const;
  int64_t row_overhead() const;
  // Rows of a core; none for cores that the plan leaves idle. Requires: core >= 0.
  CoreRows RowsOfCore(int64_t core) const;
  // Requires: 0 <= row < num_rows().
  int64_t CoreOfRow(int64_t row) const;
  // Modelled cost of a row, in units of one visible key. Requires: as CoreOfRow.
  int64_t CostOfRow(int64_t row) const;
  // Modelled cost of all rows of a core, for each core that has rows: used_core_num values.
  // Errors: kOutOfMemory; kInvalidArgument where the sum of the costs does not fit into 64 bits.
  Result<std::vector<int64_t>> CostOfCores() const;

  struct Impl;  // src/plan
  explicit Plan(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

// One question each to a record; Plan answers many. Errors: as Plan::Decode; kInvalidArgument if
// `core` or `row` is out of range.
KINDLING_API Result<CoreRows> RowsOfCore(const Metadata& metadata, const Problem& problem,
                                         int64_t core);
KINDLING_API Result<int64_t> CoreOfRow(const Metadata& metadata, const Problem& problem,
                                       int64_t row);

// What a device name says about defaults. It never changes what is checked or computed.
struct SocProfile {
  std::string_view family;       // "Ascend950" or "Ascend910"
  int64_t num_cores = 0;         // cube cores (the vendor's aic_core_num)
  int64_t num_vector_cores = 0;  // the vendor's aiv_core_num
  int64_t base_block_size = 0;   // rows of the vendor's base block
};
// Parses names such as "Ascend950PR_9589" or "Ascend910B2". Source: docs/metadata.md.
// Errors: kInvalidArgument for a name of no known family.
KINDLING_API Result<SocProfile> ParseSocVersion(std::string_view soc_version);

// DescribeOperator("make_metadata").
KINDLING_API std::span<const ArgumentDescription> DescribeMetadataOperator();

}  // namespace kindling

#endif  // KINDLING_METADATA_H_
