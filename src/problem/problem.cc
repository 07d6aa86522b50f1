#include "kindling/problem.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked_math.h"
#include "base/guard.h"
#include "base/message.h"
#include "problem/lengths.h"

namespace kindling {
namespace {

// One side's lengths, copied. Vectors are empty where the closed form does.
struct OwnedSide {
  Layout layout = Layout::kBsnd;
  int64_t dense_length = 0;
  std::vector<int32_t> cu_seqlens;  // TND
  std::vector<int32_t> seqused;

  int64_t StorageBegin(int64_t batch) const {
    return layout == Layout::kTnd ? cu_seqlens[batch] : batch * dense_length;
  }
  int64_t Allocated(int64_t batch) const {
    return layout == Layout::kTnd ? cu_seqlens[batch + 1] - cu_seqlens[batch] : dense_length;
  }
  int64_t Used(int64_t batch) const { return seqused.empty() ? Allocated(batch) : seqused[batch]; }
};

std::vector<int32_t> Copy(const IntVector& vector) {
  std::vector<int32_t> copy(vector.size);
  for (int64_t i = 0; i < vector.size; ++i) copy[i] = static_cast<int32_t>(vector[i]);
  return copy;
}

OwnedSide CopySide(const SideLengths& side) {
  OwnedSide owned;
  owned.layout = side.layout;
  owned.dense_length = side.dense_length;
  if (side.layout == Layout::kTnd) owned.cu_seqlens = Copy(side.cu_seqlens);
  owned.seqused = Copy(side.seqused);
  return owned;
}

}  // namespace

struct Problem::Impl {
  OwnedSide q, k;
  std::vector<int32_t> residual;
  std::vector<int64_t> row_begin;  // (B+1,) prefix sums of used rows, where seqused_q is given
  int64_t num_batches = 0;
  LengthTotals totals;
  int64_t max_allocated_keys = 0;
  MaskMode mask_mode = MaskMode::kNone;
  int64_t cmp_ratio = 1;

  int64_t RowBegin(int64_t batch) const {
    return row_begin.empty() ? q.StorageBegin(batch) : row_begin[batch];
  }
};

namespace {

Result<Problem> CopyLengths(const Lengths& lengths) {
  const Result<LengthTotals> totals = CheckLengthValues(lengths);
  if (!totals.ok()) return totals.status();
  auto impl = std::make_shared<Problem::Impl>();
  impl->q = CopySide(lengths.q);
  impl->k = CopySide(lengths.k);
  impl->residual = Copy(lengths.residual);
  impl->num_batches = lengths.num_batches;
  impl->totals = totals.value();
  impl->mask_mode = lengths.mask_mode;
  impl->cmp_ratio = lengths.cmp_ratio;
  if (!impl->q.seqused.empty()) {
    impl->row_begin.resize(lengths.num_batches + 1);
    for (int64_t batch = 0; batch < lengths.num_batches; ++batch) {
      impl->row_begin[batch + 1] = impl->row_begin[batch] + impl->q.seqused[batch];
    }
  }
  if (lengths.k.layout == Layout::kBsnd) {
    impl->max_allocated_keys = lengths.num_batches > 0 ? lengths.k.dense_length : 0;
  } else {
    for (int64_t batch = 0; batch < lengths.num_batches; ++batch) {
      impl->max_allocated_keys = std::max(impl->max_allocated_keys, impl->k.Allocated(batch));
    }
  }
  return Problem(std::move(impl));
}

}  // namespace

Result<Problem> MakeProblem(const Lengths& lengths) {
  return GuardMemory([&] { return CopyLengths(lengths); });
}

Problem::Problem(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<Problem> Problem::Create(const MetadataArgs& args) {
  MetadataArgs lengths_only = args;
  lengths_only.num_heads_q = 1;
  lengths_only.num_heads_k = 1;
  lengths_only.head_dim = kMetadataHeadDim;
  lengths_only.num_cores = 1;
  lengths_only.num_vector_cores = 1;
  const Result<Lengths> lengths = DescribeMetadataArgs(lengths_only, nullptr);
  if (!lengths.ok()) return lengths.status();
  return MakeProblem(lengths.value());
}

int64_t Problem::num_batches() const { return impl_->num_batches; }
int64_t Problem::num_rows() const { return impl_->totals.num_rows; }
int64_t Problem::max_num_keys() const { return impl_->totals.max_num_keys; }
int64_t Problem::max_allocated_keys() const { return impl_->max_allocated_keys; }
Layout Problem::layout_q() const { return impl_->q.layout; }
Layout Problem::layout_k() const { return impl_->k.layout; }
MaskMode Problem::mask_mode() const { return impl_->mask_mode; }
int64_t Problem::cmp_ratio() const { return impl_->cmp_ratio; }

Sequence Problem::sequence(int64_t batch) const {
  Sequence sequence;
  sequence.row_begin = impl_->RowBegin(batch);
  sequence.num_rows = impl_->q.Used(batch);
  sequence.num_keys = impl_->k.Used(batch);
  sequence.storage_row_begin = impl_->q.StorageBegin(batch);
  sequence.num_allocated_rows = impl_->q.Allocated(batch);
  sequence.key_begin = impl_->k.StorageBegin(batch);
  sequence.num_allocated_keys = impl_->k.Allocated(batch);
  sequence.residual = impl_->residual.empty() ? 0 : impl_->residual[batch];
  return sequence;
}

int64_t Problem::NumVisibleKeys(const Sequence& sequence, int64_t position) const {
  if (impl_->mask_mode == MaskMode::kNone) return sequence.num_keys;
  return CausalVisibleKeys(sequence.num_keys, impl_->cmp_ratio, sequence.residual,
                           sequence.num_rows, position);
}

int64_t Problem::BatchOfRow(int64_t row) const {
  // The last batch that begins at or before the row; batches without rows begin where the next one
  // does and are stepped over.
  if (!impl_->row_begin.empty()) {
    const auto& begins = impl_->row_begin;
    return std::upper_bound(begins.begin(), begins.end(), row) - begins.begin() - 1;
  }
  if (impl_->q.layout == Layout::kTnd) {
    const auto& begins = impl_->q.cu_seqlens;
    return std::upper_bound(begins.begin(), begins.end(), row) - begins.begin() - 1;
  }
  return row / impl_->q.dense_length;
}

RowCoordinates Problem::Locate(int64_t row) const {
  RowCoordinates at;
  at.batch = BatchOfRow(row);
  const Sequence sequence = this->sequence(at.batch);
  at.position = row - sequence.row_begin;
  at.storage_row = sequence.storage_row_begin + at.position;
  at.key_begin = sequence.key_begin;
  at.num_visible_keys = NumVisibleKeys(sequence, at.position);
  return at;
}

}  // namespace kindling
