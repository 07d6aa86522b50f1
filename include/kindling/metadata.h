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

#include "kindling/export.h"
#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

inline constexpr int64_t kMetadataWords = 64;

// The record. Field names follow the vendor's words.
struct Metadata {
  int32_t total_size = 0;              // word 0: rows T
  int32_t former_core_size = 0;        // word 1: rows of each of the first cores
  int32_t remain_core_size = 0;        // word 2: rows of each remaining core
  int32_t remain_core_num = 0;         // word 3: how many cores take remain_core_size rows
  int32_t used_core_num = 0;           // word 4: cores that have rows
  int32_t max_seq_k = 0;               // word 5: longest used key length
  std::array<int32_t, 58> reserved{};  // words 6..63: zero in the compatible plan
};
static_assert(sizeof(Metadata) == kMetadataWords * sizeof(int32_t));
static_assert(offsetof(Metadata, used_core_num) == 4 * sizeof(int32_t));
static_assert(offsetof(Metadata, reserved) == 6 * sizeof(int32_t));

// Makes the compatible plan.
//
// | argument | direction | meaning |
// | args     | in        | lengths, attributes and core count, see MetadataArgs |
//
// Workspace: none; allocates nothing on success. O(B) time, O(1) where lengths are uniform.
// Threads: any number of callers at once.
// Repeats: the record is a function of the arguments.
// Errors: kInvalidArgument, kInvalidDtype (a length tensor that is not int32); the first failing
//   check in the order of docs/metadata.md decides.
// Source: docs/metadata.md.
KINDLING_API Result<Metadata> MakeMetadata(const MetadataArgs& args);

// The same into a caller's int32 tensor of shape (64,). On failure it is left untouched.
KINDLING_API Status MakeMetadata(const MetadataArgs& args, const Tensor& metadata);

// Whether `metadata` is a record for `problem`, made for any number of cores.
// Errors: kInvalidArgument names the first word that is wrong.
KINDLING_API Status ValidateMetadata(const Metadata& metadata, const Problem& problem);

}  // namespace kindling

#endif  // KINDLING_METADATA_H_
