// One problem to test with, as plain numbers that fit on a line.
#ifndef KINDLING_TESTS_SUPPORT_CASE_H_
#define KINDLING_TESTS_SUPPORT_CASE_H_

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kindling/metadata.h"
#include "kindling/problem.h"
#include "kindling/tensor.h"
#include "support/owned_tensor.h"

namespace kindling::test {

struct Case {
  Layout layout_q = Layout::kTnd;
  Layout layout_k = Layout::kTnd;
  DType dtype = DType::kFloat32;  // of q and k
  MaskMode mask_mode = MaskMode::kNone;
  int64_t cmp_ratio = 1;
  int64_t num_heads = 1;
  int64_t num_key_heads = 1;  // of the teacher
  int64_t head_dim = 1;
  std::vector<int64_t> num_rows;  // used, per batch
  std::vector<int64_t> num_keys;  // used, per batch
  std::vector<int64_t> residual;  // per batch; empty: absent
  int64_t spare_rows = 0;         // allocated in every batch beyond what its layout needs
  int64_t spare_keys = 0;
  int64_t spare_columns =
      0;  // of p beyond the longest visible prefix; none if both layouts are BSND
  Spread spread = Spread::kDense;  // of the floating inputs
  bool row_scale = false;
  bool wide_grads = false;  // dq and dk in fp32
  std::string seed;         // of the data, beside everything above

  int64_t num_batches() const { return static_cast<int64_t>(num_rows.size()); }
};

// "q=TND k=BSND dtype=bf16 mask=3 ..."; ParseCase reads it back, and leaves defaults where a word
// is missing.
std::string ToString(const Case& spec);
std::optional<Case> ParseCase(std::string_view text);
std::ostream& operator<<(std::ostream& out, const Case& spec);

// A shell command that runs the current test on this case alone (see ForEachCase).
std::string ReproduceCommand(const Case& spec);

// Multiply-adds of one product of all visible pairs: what a case costs.
int64_t NumMultiplyAdds(const Case& spec);

// Keys that the row at `position` of `batch` sees: the spec's formula, written once more.
int64_t VisibleKeys(const Case& spec, int64_t batch, int64_t position);

// Where a case's rows and keys lie in its tensors: every allocated row and key has an index, that
// of the packed tensor or of the flattened (B, S) dims.
struct Placement {
  explicit Placement(const Case& spec);

  struct Batch {
    int64_t row_begin = 0;  // index of the first row
    int64_t num_rows = 0;
    int64_t num_allocated_rows = 0;
    int64_t key_begin = 0;  // index of the first key
    int64_t num_keys = 0;
    int64_t num_allocated_keys = 0;
  };
  std::vector<Batch> batches;
  int64_t num_allocated_rows = 0;  // of all batches
  int64_t num_allocated_keys = 0;
  int64_t num_columns = 0;  // last dim of p
};

// One used row.
struct RowPlace {
  int64_t batch = 0;
  int64_t position = 0;     // within the batch
  int64_t row = 0;          // index, see Placement
  int64_t key_begin = 0;    // index of the first key
  int64_t num_visible = 0;  // n
};
std::vector<RowPlace> UsedRows(const Case& spec);

// The length tensors of a case, present only where they are needed.
struct LengthTensors {
  explicit LengthTensors(const Case& spec);
  // Fills in what all operators share.
  void Describe(const Case& spec, SequenceArgs& args) const;

  OwnedTensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k;
};

// The record of the metadata operator for `num_cores` cores, as a tensor.
OwnedTensor MakeRecord(const Case& spec, int64_t num_cores, PlanPolicy policy = PlanPolicy::kRows);

// Extents of a tensor with the rows (or keys) of a case: {B, S} or {T}, then `rest`.
std::vector<int64_t> RowShape(const Case& spec, std::vector<int64_t> rest);
std::vector<int64_t> KeyShape(const Case& spec, std::vector<int64_t> rest);
// Extents of lse and its kind: {B, 1, S} or {1, T}, then `rest`.
std::vector<int64_t> LseShape(const Case& spec, std::vector<int64_t> rest = {});

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_CASE_H_
