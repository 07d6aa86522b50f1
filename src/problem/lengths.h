// The lengths of a ragged batch while they are still in the caller's memory, and the checks that
// make them trustworthy. The numbers in comments are those of the table in docs/metadata.md.
#ifndef KINDLING_SRC_PROBLEM_LENGTHS_H_
#define KINDLING_SRC_PROBLEM_LENGTHS_H_

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/checked_math.h"
#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {

// The only head width of the metadata operator.
inline constexpr int64_t kMetadataHeadDim = 128;

// A strided int32 vector; size 0 where the tensor is absent.
struct IntVector {
  const int32_t* data = nullptr;
  int64_t stride = 1;
  int64_t size = 0;

  bool present() const { return size > 0; }
  int64_t operator[](int64_t index) const { return data[index * stride]; }
};

// The query or the key side.
struct SideLengths {
  Layout layout = Layout::kBsnd;
  IntVector cu_seqlens;           // values are checked always, used in TND
  IntVector seqused;              // absent: all that is allocated is used
  int64_t dense_length = 0;       // allocated length of every batch in BSND
  std::string_view length_name;   // what messages call dense_length
  std::string_view cu_name;       // "cu_seqlens_q" or "cu_seqlens_k"
  std::string_view seqused_name;  // "seqused_q" or "seqused_k"

  bool uniform() const { return layout == Layout::kBsnd && !seqused.present(); }
  int64_t StorageBegin(int64_t batch) const {
    return layout == Layout::kTnd ? cu_seqlens[batch] : batch * dense_length;
  }
  int64_t Allocated(int64_t batch) const {
    return layout == Layout::kTnd ? cu_seqlens[batch + 1] - cu_seqlens[batch] : dense_length;
  }
  int64_t Used(int64_t batch) const {
    return seqused.present() ? seqused[batch] : Allocated(batch);
  }
};

struct Lengths {
  SideLengths q, k;
  IntVector residual;
  int64_t num_batches = 0;
  std::string_view batch_name;  // where num_batches comes from
  MaskMode mask_mode = MaskMode::kNone;
  int64_t cmp_ratio = 1;

  int64_t Residual(int64_t batch) const { return residual.present() ? residual[batch] : 0; }
};

// Sums and maxima of checked lengths.
struct LengthTotals {
  int64_t num_rows = 0;
  int64_t max_num_keys = 0;
};

// Where a BSND side has its batch count and length from: an attribute or a tensor's dims.
struct DenseSide {
  int64_t num_batches = 0;
  std::string_view batch_name;
  int64_t length = 0;
  std::string_view length_name;
};

struct Attributes {
  Layout layout_q = Layout::kBsnd;
  Layout layout_k = Layout::kBsnd;
};

// mask_mode, cmp_ratio, layout_q, layout_k (9..14).
Result<Attributes> CheckSequenceAttributes(const SequenceArgs& args);

// What the descriptors alone tell, without reading an element (17..19, 21, 23..26). `metadata_out`
// is the metadata operator's output tensor, or null where there is none (20, 22).
Result<Lengths> DescribeLengths(const SequenceArgs& args, const Attributes& attributes,
                                const DenseSide& dense_q, const DenseSide& dense_k,
                                const ConstTensor* metadata_out);

// The metadata operator's whole descriptor stage, Prepare (3..28). Of its companions, one has keys
// of another width.
Result<Lengths> DescribeMetadataArgs(const MetadataArgs& args, const ConstTensor* metadata_out,
                                     int64_t head_dim = kMetadataHeadDim);

// The values of the length tensors (30..33). Requires: lengths from a Describe... function.
Result<LengthTotals> CheckLengthValues(const Lengths& lengths);

// Copies checked lengths into a Problem. Errors: as CheckLengthValues; kOutOfMemory.
Result<Problem> MakeProblem(const Lengths& lengths);

// floor((num_keys*cmp_ratio + residual - num_rows + position + 1) / cmp_ratio) within [0,
// num_keys].
inline int64_t CausalVisibleKeys(int64_t num_keys, int64_t cmp_ratio, int64_t residual,
                                 int64_t num_rows, int64_t position) {
  const int64_t tokens = num_keys * cmp_ratio + residual - num_rows + position + 1;
  const int64_t num_visible = cmp_ratio == 1 ? tokens : FloorDiv(tokens, cmp_ratio);
  return std::clamp<int64_t>(num_visible, 0, num_keys);
}

}  // namespace kindling

#endif  // KINDLING_SRC_PROBLEM_LENGTHS_H_
