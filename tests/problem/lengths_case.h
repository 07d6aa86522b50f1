// A ragged batch written down as vectors, and what the definition of rows and visible keys says
// about it, by counting.
#ifndef KINDLING_TESTS_PROBLEM_LENGTHS_CASE_H_
#define KINDLING_TESTS_PROBLEM_LENGTHS_CASE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling::test {

inline ConstTensor Int32View(const std::vector<int32_t>& values) {
  if (values.empty()) return ConstTensor();
  return ConstTensor(values.data(), DType::kInt32, {static_cast<int64_t>(values.size())});
}

// "cu_seqlens_q" of "cu_seqlens_q[3]: expected ..., got ...", and "q" of "q.shape[0]: ...".
inline std::string ArgumentOf(const Status& status) {
  return status.message().substr(0, status.message().find_first_of(":[."));
}

// Whether a message says what is allowed and what was got.
inline bool HasMessageForm(const Status& status) {
  const size_t expected = status.message().find(": expected ");
  return expected != std::string::npos && expected > 0 &&
         status.message().find(", got ", expected) != std::string::npos;
}

struct LengthsCase {
  std::string_view layout_q = "TND";
  std::string_view layout_k = "TND";
  std::vector<int32_t> cu_q, cu_k, used_q, used_k, residual;  // empty: absent
  int64_t batch_size = 0;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  int64_t mask_mode = 0;
  int64_t cmp_ratio = 1;
  int64_t num_cores = 1;

  // Views of this object's vectors.
  MetadataArgs Args() const&& = delete;
  MetadataArgs Args() const& {
    MetadataArgs args;
    args.cu_seqlens_q = Int32View(cu_q);
    args.cu_seqlens_k = Int32View(cu_k);
    args.seqused_q = Int32View(used_q);
    args.seqused_k = Int32View(used_k);
    args.cmp_residual_k = Int32View(residual);
    args.layout_q = layout_q;
    args.layout_k = layout_k;
    args.mask_mode = mask_mode;
    args.cmp_ratio = cmp_ratio;
    args.num_heads_q = 64;
    args.num_heads_k = 1;
    args.head_dim = 128;
    args.batch_size = batch_size;
    args.max_seqlen_q = max_seqlen_q;
    args.max_seqlen_k = max_seqlen_k;
    args.num_cores = num_cores;
    return args;
  }
};

// How the lengths of one side are passed in.
enum class Form {
  kPacked,      // TND, every allocated token used
  kPackedUsed,  // TND with spare tokens behind every sequence, and seqused
  kPadded,      // BSND with seqused
  kUniform,     // BSND, all used. Requires: equal lengths >= 1
};

// Writes `used` lengths into one side of a case. In the packed forms the attribute
// max_seqlen gets a number that contradicts the lengths, because it must be ignored.
inline void SetSide(Form form, const std::vector<int32_t>& used, std::string_view& layout,
                    std::vector<int32_t>& cu, std::vector<int32_t>& seqused, int64_t& max_seqlen) {
  const bool packed = form == Form::kPacked || form == Form::kPackedUsed;
  layout = packed ? "TND" : "BSND";
  cu.clear();
  seqused.clear();
  if (form != Form::kPacked && form != Form::kUniform) seqused = used;
  max_seqlen = 1;
  if (packed) {
    cu.push_back(0);
    for (size_t b = 0; b < used.size(); ++b) {
      const int32_t spare = form == Form::kPacked ? 0 : static_cast<int32_t>((b + 1) % 3);
      cu.push_back(cu.back() + used[b] + spare);
    }
    return;
  }
  for (const int32_t length : used) {
    if (length > max_seqlen) max_seqlen = length;
  }
  if (form == Form::kPadded) max_seqlen += 2;
}

inline LengthsCase MakeCase(Form form_q, Form form_k, const std::vector<int32_t>& num_rows,
                            const std::vector<int32_t>& num_keys) {
  LengthsCase lengths;
  SetSide(form_q, num_rows, lengths.layout_q, lengths.cu_q, lengths.used_q, lengths.max_seqlen_q);
  SetSide(form_k, num_keys, lengths.layout_k, lengths.cu_k, lengths.used_k, lengths.max_seqlen_k);
  lengths.batch_size = static_cast<int64_t>(num_rows.size());
  return lengths;
}

// Keys of a batch that the row at `position` sees under the causal mask: key j stands for tokens up
// to (j + 1) * ratio, and the row sees it if it has got that far.
inline int64_t CountCausalKeys(int64_t num_keys, int64_t ratio, int64_t residual, int64_t num_rows,
                               int64_t position) {
  const int64_t num_tokens = num_keys * ratio + residual - (num_rows - 1 - position);
  int64_t count = 0;
  while (count < num_keys && (count + 1) * ratio <= num_tokens) ++count;
  return count;
}

// batch, position, storage row, first key, visible keys.
using RowFacts = std::array<int64_t, 5>;

inline RowFacts FactsOf(const RowCoordinates& row) {
  return {row.batch, row.position, row.storage_row, row.key_begin, row.num_visible_keys};
}

// All used rows of a valid case, in order.
inline std::vector<RowFacts> RowsOf(const LengthsCase& lengths) {
  const bool packed_q = lengths.layout_q == "TND";
  const bool packed_k = lengths.layout_k == "TND";
  const int64_t num_batches = !lengths.used_q.empty() ? static_cast<int64_t>(lengths.used_q.size())
                              : packed_q ? static_cast<int64_t>(lengths.cu_q.size()) - 1
                                         : lengths.batch_size;
  std::vector<RowFacts> rows;
  for (int64_t b = 0; b < num_batches; ++b) {
    const int64_t row_begin = packed_q ? lengths.cu_q[b] : b * lengths.max_seqlen_q;
    const int64_t key_begin = packed_k ? lengths.cu_k[b] : b * lengths.max_seqlen_k;
    int64_t num_rows = packed_q ? lengths.cu_q[b + 1] - lengths.cu_q[b] : lengths.max_seqlen_q;
    int64_t num_keys = packed_k ? lengths.cu_k[b + 1] - lengths.cu_k[b] : lengths.max_seqlen_k;
    if (!lengths.used_q.empty()) num_rows = lengths.used_q[b];
    if (!lengths.used_k.empty()) num_keys = lengths.used_k[b];
    const int64_t residual = lengths.residual.empty() ? 0 : lengths.residual[b];
    for (int64_t s = 0; s < num_rows; ++s) {
      const int64_t visible = lengths.mask_mode == 0 ? num_keys
                                                     : CountCausalKeys(num_keys, lengths.cmp_ratio,
                                                                       residual, num_rows, s);
      rows.push_back({b, s, row_begin + s, key_begin, visible});
    }
  }
  return rows;
}

}  // namespace kindling::test

#endif  // KINDLING_TESTS_PROBLEM_LENGTHS_CASE_H_
