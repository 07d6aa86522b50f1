#include "ops/launch.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/checked_math.h"
#include "base/message.h"
#include "plan/record.h"

namespace kindling {
namespace {

// Rows of a block: as many as leave it its number of pairs, of whichever operands have most heads.
int64_t RowsPerBlock(const PackedOperands& indexer, const PackedOperands& attention) {
  const int64_t heads = std::max(indexer.padded_heads, attention.padded_heads);
  return std::max<int64_t>(1, kPairsPerBlock / heads);
}

// What does not depend on lengths.
OperandDims DimsOf(const PackedOperands& operands, int64_t rows_per_block) {
  OperandDims dims;
  dims.num_key_heads = operands.num_key_heads;
  dims.head_dim = operands.head_dim;
  dims.panel_width = operands.kernels->panel_width;
  dims.values_per_word = operands.kernels->values_per_word;
  dims.pairs_per_block = SaturatingMul(rows_per_block, operands.padded_heads);
  dims.packs_keys_once = operands.packs_keys_once();
  return dims;
}

WorkspaceDims DimsOfBlock(int64_t rows_per_block) {
  WorkspaceDims dims;
  dims.rows_per_block = rows_per_block;
  dims.keys_per_chunk = kKeysPerChunk;
  dims.score_stride = kScoreStride;
  return dims;
}

}  // namespace

Launch::Launch(OperatorCall checked, Isa isa, Heads heads, int64_t max_workers)
    : call(std::move(checked)),
      indexer(call.indexer, *KernelsFor(isa, call.indexer.q.dtype), heads),
      attention(call.attention, *KernelsFor(isa, call.attention.q.dtype), heads),
      kernels(*(indexer.num_heads > 0 ? indexer : attention).kernels),
      rows_per_block(RowsPerBlock(indexer, attention)),
      tiling(call.problem, TileShape{rows_per_block, kKeysPerChunk, kernels.panel_width}),
      schedule(tiling, kKeysPerSpan, max_workers),
      num_workers(std::clamp<int64_t>(schedule.num_units(), 1, max_workers)) {}

Result<Launch> PrepareLaunch(Result<OperatorCall> checked, const ConstTensor& metadata,
                             int64_t num_threads, const OperatorLayout& op) {
  if (!checked.ok()) return checked.status();
  KINDLING_RETURN_IF_ERROR(CheckMetadataInput(metadata, checked.value().problem));
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return InvalidArgument("num_threads: expected in [1, ", kMaxThreads,
                           "], or 0 for the default, got ", num_threads);
  }
  if (num_threads == 0) num_threads = GetNumThreads();
  Launch launch(std::move(checked).value(), GetIsa(), op.heads, num_threads);
  WorkspaceDims dims = DimsOfBlock(launch.rows_per_block);
  dims.indexer = DimsOf(launch.indexer, launch.rows_per_block);
  dims.attention = DimsOf(launch.attention, launch.rows_per_block);
  dims.num_padded_keys = launch.tiling.num_padded_keys();
  dims.num_chunks = launch.tiling.num_chunks();
  dims.num_workers = launch.num_workers;
  if (launch.schedule.splits_blocks()) dims.num_split_blocks = launch.tiling.num_blocks();
  dims.num_units = launch.schedule.num_units();
  launch.layout = op.lay_out(dims);
  return launch;
}

int64_t WorkspaceLimit(const CallShape& shape, int64_t num_threads, const OperatorLayout& op,
                       OperandDims WorkspaceDims::* which) {
  const KernelTable& kernels = CurrentKernels(shape.dtype);
  const PackedOperands operands({shape.num_heads, shape.num_key_heads, shape.head_dim, {}, {}},
                                kernels, op.heads);
  const int64_t rows_per_block = RowsPerBlock(operands, operands);
  WorkspaceDims dims = DimsOfBlock(rows_per_block);
  dims.*which = DimsOf(operands, rows_per_block);
  // Every batch may end within a panel and within a chunk.
  dims.num_padded_keys =
      SaturatingAdd(shape.num_keys, SaturatingMul(shape.num_batches, kernels.panel_width - 1));
  dims.num_chunks = SaturatingAdd(shape.num_keys / kKeysPerChunk, shape.num_batches);
  dims.num_workers = num_threads;
  const int64_t whole_blocks = op.lay_out(dims).bytes;
  // See Schedule: fewer than two blocks a thread, each with the spans of one batch at most.
  dims.num_split_blocks = 2 * num_threads - 1;
  dims.num_units =
      SaturatingMul(dims.num_split_blocks, SaturatingAdd(shape.num_keys / kKeysPerSpan, 1));
  return std::max(whole_blocks, num_threads > 1 ? op.lay_out(dims).bytes : 0);
}

Counter* Workspace::SpansDone(int64_t block) const {
  if (!launch_.schedule.splits_blocks()) return nullptr;
  return std::launder(
      ArrayAt<Counter>(data_, launch_.layout.block_turns + block * int64_t{kAlignment}));
}

void Workspace::StartTurns() const {
  if (!launch_.schedule.splits_blocks()) return;
  for (int64_t block = 0; block < launch_.tiling.num_blocks(); ++block) {
    new (data_ + launch_.layout.block_turns + block * int64_t{kAlignment}) Counter(0);
  }
}

Turn::Turn(Counter* counter, int64_t turn) : counter_(counter), turn_(static_cast<uint32_t>(turn)) {
  if (counter_ != nullptr) WaitUntilReached(*counter_, turn_);
}

Turn::~Turn() {
  if (counter_ == nullptr) return;
  counter_->store(turn_ + 1, std::memory_order_release);
  counter_->notify_all();
}

Result<size_t> WorkspaceBytesOf(const Result<Launch>& launch) {
  if (!launch.ok()) return launch.status();
  return static_cast<size_t>(launch.value().layout.bytes);
}

Result<WorkspaceLease> WorkspaceLease::Take(const RunOptions& options, int64_t bytes) {
  WorkspaceLease lease;
  const auto needed = static_cast<size_t>(bytes);
  if (options.workspace != nullptr) {
    if (reinterpret_cast<uintptr_t>(options.workspace) % kAlignment != 0) {
      return InvalidArgument("workspace: expected an address aligned to ", kAlignment,
                             " bytes, got one that is not");
    }
    if (options.workspace_bytes < needed) {
      return InvalidArgument("workspace_bytes: expected >= ", needed, ", got ",
                             options.workspace_bytes);
    }
    lease.data_ = static_cast<std::byte*>(options.workspace);
    return lease;
  }
  if (needed == 0) return lease;
  lease.owned_ = WorkerPool::Instance().TakeBuffer(needed);
  lease.data_ = lease.owned_.data();
  if (lease.data_ == nullptr) {
    return Status(StatusCode::kOutOfMemory,
                  Concat("workspace: expected ", needed, " bytes of host memory, got none"));
  }
  return lease;
}

WorkspaceLease::WorkspaceLease(WorkspaceLease&& other) noexcept
    : data_(other.data_), owned_(std::move(other.owned_)) {}

WorkspaceLease::~WorkspaceLease() {
  if (owned_.data() != nullptr) WorkerPool::Instance().GiveBack(std::move(owned_));
}

void FillRows(const RowView& view, int64_t batch, const Sequence& sequence, int64_t row_begin,
              int64_t row_end, float value) {
  if (!view) return;
  for (int64_t row = row_begin; row < row_end; ++row) {
    *static_cast<float*>(view.OutAt(view.RowOffset(batch, sequence.storage_row_begin, row))) =
        value;
  }
}

void ZeroRows(const RowView& view, int64_t batch, int64_t storage_begin, int64_t row_begin,
              int64_t row_end, int64_t row_elements) {
  if (!view || row_begin >= row_end) return;
  std::memset(view.OutAt(view.RowOffset(batch, storage_begin, row_begin)), 0,
              (row_end - row_begin) * row_elements * ElementBytes(view.dtype));
}

void LoadTeacher(const Launch& launch, const RowBlock& block, int64_t row, int64_t key_begin,
                 int64_t count, float* out) {
  const RowView& p = launch.call.p;
  launch.kernels.load_row(
      p.At(RowOffset(p, block, block.row_begin + row) + key_begin * p.element_stride),
      DType::kFloat32, p.element_stride, count, out);
}

}  // namespace kindling
