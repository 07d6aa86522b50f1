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

int64_t RowsPerBlock(int64_t num_heads) { return std::max<int64_t>(1, kPairsPerBlock / num_heads); }

int64_t PadHeads(int64_t num_heads, const KernelTable& kernels, Heads heads) {
  return heads == Heads::kWholeWords ? SaturatingRoundUp(num_heads, kernels.values_per_word)
                                     : num_heads;
}

// What does not depend on lengths.
WorkspaceDims DimsOfShape(const KernelTable& kernels, int64_t padded_heads, int64_t num_key_heads,
                          int64_t head_dim) {
  WorkspaceDims dims;
  dims.num_key_heads = num_key_heads;
  dims.head_dim = head_dim;
  dims.panel_width = kernels.panel_width;
  dims.values_per_word = kernels.values_per_word;
  dims.rows_per_block = RowsPerBlock(padded_heads);
  dims.pairs_per_block = SaturatingMul(dims.rows_per_block, padded_heads);
  dims.keys_per_chunk = kKeysPerChunk;
  dims.score_stride = kScoreStride;
  return dims;
}

}  // namespace

Launch::Launch(OperatorCall checked, const KernelTable& kernel_table, int64_t heads,
               int64_t max_workers)
    : call(std::move(checked)),
      kernels(kernel_table),
      padded_heads(heads),
      rows_per_block(RowsPerBlock(heads)),
      depth_words(CeilDiv(call.head_dim, kernels.values_per_word)),
      row_words(SaturatingRoundUp(depth_words, kVectorFloats)),
      tiling(call.problem, TileShape{rows_per_block, kKeysPerChunk, kernels.panel_width}),
      schedule(tiling, kKeysPerSpan, max_workers),
      num_workers(std::clamp<int64_t>(schedule.num_units(), 1, max_workers)) {}

Result<Launch> PrepareLaunch(Result<OperatorCall> checked, const ConstTensor& metadata,
                             int64_t num_threads, LayOutFunction lay_out, Heads heads) {
  if (!checked.ok()) return checked.status();
  KINDLING_RETURN_IF_ERROR(CheckMetadataInput(metadata, checked.value().problem));
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return InvalidArgument("num_threads: expected in [1, ", kMaxThreads,
                           "], or 0 for the default, got ", num_threads);
  }
  if (num_threads == 0) num_threads = GetNumThreads();
  const KernelTable& kernels = CurrentKernels(checked.value().q.dtype);
  const int64_t padded_heads = PadHeads(checked.value().num_heads, kernels, heads);
  Launch launch(std::move(checked).value(), kernels, padded_heads, num_threads);
  WorkspaceDims dims =
      DimsOfShape(kernels, padded_heads, launch.call.num_key_heads, launch.call.head_dim);
  dims.num_padded_keys = launch.tiling.num_padded_keys();
  dims.num_chunks = launch.tiling.num_chunks();
  dims.num_workers = launch.num_workers;
  if (launch.schedule.splits_blocks()) dims.num_split_blocks = launch.tiling.num_blocks();
  dims.num_units = launch.schedule.num_units();
  launch.layout = lay_out(dims);
  return launch;
}

int64_t WorkspaceLimit(const CallShape& shape, int64_t num_threads, LayOutFunction lay_out,
                       Heads heads) {
  const KernelTable& kernels = CurrentKernels(shape.dtype);
  WorkspaceDims dims = DimsOfShape(kernels, PadHeads(shape.num_heads, kernels, heads),
                                   shape.num_key_heads, shape.head_dim);
  // Every batch may end within a panel and within a chunk.
  dims.num_padded_keys =
      SaturatingAdd(shape.num_keys, SaturatingMul(shape.num_batches, kernels.panel_width - 1));
  dims.num_chunks = SaturatingAdd(shape.num_keys / kKeysPerChunk, shape.num_batches);
  dims.num_workers = num_threads;
  const int64_t whole_blocks = lay_out(dims).bytes;
  // See Schedule: fewer than two blocks a thread, each with the spans of one batch at most.
  dims.num_split_blocks = 2 * num_threads - 1;
  dims.num_units =
      SaturatingMul(dims.num_split_blocks, SaturatingAdd(shape.num_keys / kKeysPerSpan, 1));
  return std::max(whole_blocks, num_threads > 1 ? lay_out(dims).bytes : 0);
}

Counter* Workspace::BlockTurn(int64_t block) const {
  return std::launder(
      ArrayAt<Counter>(data_, launch_.layout.block_turns + block * int64_t{kAlignment}));
}

void Workspace::StartTurns() const {
  if (!launch_.schedule.splits_blocks()) return;
  for (int64_t block = 0; block < launch_.tiling.num_blocks(); ++block) {
    new (data_ + launch_.layout.block_turns + block * int64_t{kAlignment}) Counter(0);
  }
}

SpanTurn::SpanTurn(const Launch& launch, const Workspace& workspace, const Unit& unit, int64_t span)
    : next_(static_cast<uint32_t>(span) + 1) {
  if (!launch.schedule.splits_blocks()) return;
  turn_ = workspace.BlockTurn(unit.block);
  WaitUntilReached(*turn_, static_cast<uint32_t>(span));
}

SpanTurn::~SpanTurn() {
  if (turn_ == nullptr) return;
  turn_->store(next_, std::memory_order_release);
  turn_->notify_all();
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

void LoadPerHead(const Launch& launch, const RowBlock& block, const RowView& view, float* out) {
  const int64_t num_heads = launch.call.num_heads;
  for (int64_t row = 0; row < block.row_end - block.row_begin; ++row, out += launch.padded_heads) {
    launch.kernels.load_row(view.At(Launch::RowOffset(view, block, row)), DType::kFloat32,
                            view.head_stride, num_heads, out);
    std::fill(out + num_heads, out + launch.padded_heads, 0.0f);
  }
}

void LoadTeacher(const Launch& launch, const RowBlock& block, int64_t row, int64_t key_begin,
                 int64_t count, float* out) {
  const RowView& p = launch.call.p;
  launch.kernels.load_row(p.At(Launch::RowOffset(p, block, row) + key_begin * p.element_stride),
                          DType::kFloat32, p.element_stride, count, out);
}

bool LoadKeys(const Launch& launch, const KeyChunk& chunk, int64_t key_head, int64_t key_begin,
              int64_t count, Word* key_rows) {
  const RowView& k = launch.call.k;
  bool finite = true;
  for (int64_t key = key_begin; key < key_begin + count; ++key, key_rows += launch.row_words) {
    const int64_t offset = k.RowOffset(chunk.batch, chunk.sequence.key_begin, key);
    finite &= launch.kernels.load_words(k.At(offset + key_head * k.head_stride), k.dtype,
                                        k.element_stride, launch.call.head_dim, key_rows);
  }
  return finite;
}

bool PackKeyChunk(const Launch& launch, const KeyChunk& chunk, int64_t key_head, Word* key_rows,
                  Word* transposed) {
  const int64_t panel_width = launch.kernels.panel_width;
  bool finite = true;
  for (int64_t key = chunk.key_begin; key < chunk.key_end; key += panel_width) {
    const int64_t count = std::min(panel_width, chunk.key_end - key);
    finite &= LoadKeys(launch, chunk, key_head, key, count, key_rows);
    launch.kernels.pack_transposed(key_rows, launch.row_words, count, launch.depth_words,
                                   transposed);
    transposed += panel_width * launch.depth_words;
  }
  return finite;
}

bool LoadQueries(const Launch& launch, const RowBlock& block, Word* queries) {
  const RowView& q = launch.call.q;
  const int64_t num_rows = block.row_end - block.row_begin;
  const int64_t num_heads = launch.call.num_heads;
  const int64_t group = launch.padded_heads / launch.call.num_key_heads;
  bool finite = true;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t offset = Launch::RowOffset(q, block, row);
    const auto at = [&](int64_t head) {
      return queries + ((head / group * num_rows + row) * group + head % group) * launch.row_words;
    };
    for (int64_t head = 0; head < num_heads; ++head) {
      finite &= launch.kernels.load_words(q.At(offset + head * q.head_stride), q.dtype,
                                          q.element_stride, launch.call.head_dim, at(head));
    }
    for (int64_t head = num_heads; head < launch.padded_heads; ++head) {
      std::fill_n(at(head), launch.row_words, 0.0f);
    }
  }
  return finite;
}

void MultiplyScores(const Launch& launch, const Word* queries, int64_t num_pairs,
                    const Word* transposed_keys, int64_t num_keys, float* scores) {
  Product product;
  product.a = queries;
  product.a_row_stride = launch.row_words;
  product.b = transposed_keys;
  product.b_panel_stride = launch.depth_words * launch.kernels.panel_width;
  product.b_depth_stride = launch.kernels.panel_width;
  product.c = scores;
  product.c_row_stride = kScoreStride;
  product.num_rows = num_pairs;
  product.num_columns = num_keys;
  product.depth = launch.depth_words;
  launch.kernels.multiply(product);
}

}  // namespace kindling
