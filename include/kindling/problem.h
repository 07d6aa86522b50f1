// What is asked: a ragged batch of query rows, the prefix of keys that each row sees, and where
// both lie in the caller's tensors. Pure integers.
//
//   num_visible_keys = num_keys                                                      mask_mode 0
//   num_visible_keys = clamp(floor((uk*r + res - uq + s + 1) / r), 0, uk)            mask_mode 3
//
// with uq, uk the used query and key length of the row's batch, s the row's place in it, r the
// key compression ratio and res its residual.
#ifndef KINDLING_PROBLEM_H_
#define KINDLING_PROBLEM_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "kindling/export.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

enum class Layout : int32_t { kBsnd = 0, kTnd = 1 };
enum class MaskMode : int32_t { kNone = 0, kCausal = 3 };

// The arguments that every operator of the family shares. The five tensors are int32 of rank 1 and
// optional; one without elements counts as absent. They are only read during the call. Prefix sums
// of a BSND side are refused, except by the metadata operator, which checks their values and
// ignores them. In mask_mode 0 cmp_residual_k is checked against cmp_ratio, and neither has an
// effect.
struct SequenceArgs {
  ConstTensor cu_seqlens_q;  // (B+1,) prefix sums of allocated query lengths; required in TND
  ConstTensor cu_seqlens_k;  // (B+1,) the same for keys
  ConstTensor seqused_q;     // (B,) used query lengths; absent: all that is allocated
  ConstTensor seqused_k;     // (B,) the same for keys
  ConstTensor
      cmp_residual_k;  // (B,) tokens beyond the last whole compressed key, in [0, cmp_ratio)
  std::string_view layout_q = "BSND";  // "BSND" or "TND"; governs q, w, p, lse and their gradients
  std::string_view layout_k = "BSND";  // "BSND" or "TND"; governs k and dk
  int64_t mask_mode = 0;               // 0: every key is visible; 3: right-down causal
  int64_t cmp_ratio = 1;               // tokens per key, in [1, 128]

  void set_mask(MaskMode mask) { mask_mode = static_cast<int64_t>(mask); }
};

// How MakeMetadata splits rows: by count, or by modelled cost.
enum class PlanPolicy : int32_t { kRows = 0, kBalanced = 1 };

// The arguments of the metadata operator (see kindling/metadata.h).
struct MetadataArgs : SequenceArgs {
  int64_t num_heads_q = 0;       // in [1, 128]
  int64_t num_heads_k = 0;       // 1
  int64_t head_dim = 0;          // 128
  int64_t batch_size = 0;        // 0: taken from the tensors
  int64_t max_seqlen_q = 0;      // allocated query length of a BSND batch; ignored in TND
  int64_t max_seqlen_k = 0;      // allocated key length of a BSND batch; ignored in TND
  int64_t num_cores = 0;         // slots of the plan (the vendor's aic_core_num), >= 1
  int64_t num_vector_cores = 1;  // the vendor's aiv_core_num: checked to be >= 1, unused otherwise
  PlanPolicy policy = PlanPolicy::kRows;
};

// Where one row lies and what it sees.
struct RowCoordinates {
  int64_t batch = 0;
  int64_t position = 0;          // s: the row's place among the used rows of its batch
  int64_t storage_row = 0;       // row of q, w, p, lse: cu_seqlens_q[b] + s, or b*S1 + s
  int64_t key_begin = 0;         // storage row of the batch's first key in k
  int64_t num_visible_keys = 0;  // the row sees keys key_begin .. key_begin + num_visible_keys - 1
};

// One batch entry.
struct Sequence {
  int64_t row_begin = 0;           // rows of all batches are numbered batch-major, used rows only
  int64_t num_rows = 0;            // uq
  int64_t num_keys = 0;            // uk
  int64_t storage_row_begin = 0;   // first row in q, w, p, lse
  int64_t num_allocated_rows = 0;  // >= num_rows
  int64_t key_begin = 0;           // first key in k
  int64_t num_allocated_keys = 0;  // >= num_keys
  int64_t residual = 0;            // res
};

// A validated ragged batch that owns its lengths: O(B) memory where they are ragged, O(1) where
// they are uniform. Immutable, so it may be shared between threads; copies share the lengths.
class KINDLING_API Problem {
 public:
  // Checks `args` like MakeMetadata, except heads, width and cores, and copies the lengths.
  // Errors: as MakeMetadata; kOutOfMemory.
  static Result<Problem> Create(const MetadataArgs& args);

  int64_t num_batches() const;
  int64_t num_rows() const;            // used rows of all batches
  int64_t max_num_keys() const;        // longest used key length
  int64_t max_allocated_keys() const;  // longest allocated key length
  Layout layout_q() const;
  Layout layout_k() const;
  MaskMode mask_mode() const;
  int64_t cmp_ratio() const;

  // Requires: 0 <= batch < num_batches().
  Sequence sequence(int64_t batch) const;
  // Keys that the row at `position` of `sequence` sees.
  int64_t NumVisibleKeys(const Sequence& sequence, int64_t position) const;
  // Batch of a row, O(log B). Requires: 0 <= row < num_rows().
  int64_t BatchOfRow(int64_t row) const;
  // O(log B). Requires: 0 <= row < num_rows().
  RowCoordinates Locate(int64_t row) const;

  struct Impl;  // src/problem
  explicit Problem(std::shared_ptr<const Impl> impl);

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace kindling

#endif  // KINDLING_PROBLEM_H_
