#include "ops/launch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked_math.h"
#include "base/message.h"
#include "plan/record.h"

namespace kindling {
namespace {

int64_t RowsPerBlock(int64_t num_heads) { return std::max<int64_t>(1, kPairsPerBlock / num_heads); }

}  // namespace

Launch::Launch(OperatorCall checked, const KernelTable& kernel_table)
    : call(std::move(checked)),
      kernels(kernel_table),
      rows_per_block(RowsPerBlock(call.num_heads)),
      tiling(call.problem, TileShape{rows_per_block, kKeysPerChunk, kernel_table.panel_width}) {}

Result<Launch> PrepareLaunch(Result<OperatorCall> checked, const ConstTensor& metadata,
                             int64_t num_threads, LayOutFunction lay_out) {
  if (!checked.ok()) return checked.status();
  KINDLING_RETURN_IF_ERROR(CheckMetadataInput(metadata, checked.value().problem));
  if (num_threads < 0 || num_threads > kMaxThreads) {
    return InvalidArgument("num_threads: expected in [1, ", kMaxThreads,
                           "], or 0 for the default, got ", num_threads);
  }
  if (num_threads == 0) num_threads = GetNumThreads();
  Launch launch(std::move(checked).value(), CurrentKernels());
  launch.num_workers = std::clamp<int64_t>(launch.tiling.num_blocks(), 1, num_threads);
  WorkspaceDims dims;
  dims.num_padded_keys = launch.tiling.num_padded_keys();
  dims.num_chunks = launch.tiling.num_chunks();
  dims.num_key_heads = launch.call.num_key_heads;
  dims.head_dim = launch.call.head_dim;
  dims.panel_width = launch.kernels.panel_width;
  dims.rows_per_block = launch.rows_per_block;
  dims.pairs_per_block = launch.rows_per_block * launch.call.num_heads;
  dims.keys_per_chunk = kKeysPerChunk;
  dims.score_stride = kScoreStride;
  dims.num_workers = launch.num_workers;
  launch.layout = lay_out(dims);
  return launch;
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
  for (int64_t row = 0; row < block.row_end - block.row_begin; ++row) {
    launch.kernels.load_row(view.At(Launch::RowOffset(view, block, row)), DType::kFloat32,
                            view.head_stride, num_heads, out + row * num_heads);
  }
}

void LoadTeacher(const Launch& launch, const RowBlock& block, int64_t row, int64_t key_begin,
                 int64_t count, float* out) {
  const RowView& p = launch.call.p;
  launch.kernels.load_row(p.At(Launch::RowOffset(p, block, row) + key_begin * p.element_stride),
                          DType::kFloat32, p.element_stride, count, out);
}

bool PackKeyChunk(const Launch& launch, const KeyChunk& chunk, int64_t key_head, float* key_rows,
                  int64_t padded_width, float* transposed) {
  const RowView& k = launch.call.k;
  const int64_t width = launch.call.head_dim;
  bool finite = true;
  for (int64_t key = chunk.key_begin; key < chunk.key_end; ++key) {
    const int64_t offset = k.RowOffset(chunk.batch, chunk.sequence.key_begin, key);
    finite &=
        launch.kernels.load_row(k.At(offset + key_head * k.head_stride), k.dtype, k.element_stride,
                                width, key_rows + (key - chunk.key_begin) * padded_width);
  }
  launch.kernels.pack_transposed(key_rows, padded_width, chunk.key_end - chunk.key_begin, width,
                                 transposed);
  return finite;
}

bool LoadQueries(const Launch& launch, const RowBlock& block, float* queries,
                 int64_t padded_width) {
  const RowView& q = launch.call.q;
  const int64_t num_rows = block.row_end - block.row_begin;
  const int64_t group = launch.call.num_heads / launch.call.num_key_heads;
  bool finite = true;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t offset = Launch::RowOffset(q, block, row);
    for (int64_t head = 0; head < launch.call.num_heads; ++head) {
      const int64_t pair = (head / group * num_rows + row) * group + head % group;
      finite &=
          launch.kernels.load_row(q.At(offset + head * q.head_stride), q.dtype, q.element_stride,
                                  launch.call.head_dim, queries + pair * padded_width);
    }
  }
  return finite;
}

void MultiplyScores(const Launch& launch, const float* queries, int64_t padded_width,
                    int64_t num_pairs, const float* transposed_keys, int64_t num_keys,
                    float* scores) {
  const int64_t panel_width = launch.kernels.panel_width;
  Product product;
  product.a = queries;
  product.a_row_stride = padded_width;
  product.a_depth_stride = 1;
  product.b = transposed_keys;
  product.b_panel_stride = launch.call.head_dim * panel_width;
  product.c = scores;
  product.c_row_stride = kScoreStride;
  product.num_rows = num_pairs;
  product.num_panels = CeilDiv(num_keys, panel_width);
  product.depth = launch.call.head_dim;
  launch.kernels.multiply(product);
}

}  // namespace kindling
