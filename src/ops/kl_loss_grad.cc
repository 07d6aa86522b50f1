#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include "base/checked_math.h"
#include "base/guard.h"
#include "kindling/operators.h"
#include "ops/launch.h"

namespace kindling {
namespace {

// One call. Phase 1 packs keys and zeroes what nobody computes; phase 2 takes blocks of rows; phase
// 3 rounds dk. All blocks of a sequence add to the same dk sums, chunk by chunk, in ticket order:
// that fixes the order of the sum whoever computes a block. A worker waits only for blocks that
// were dealt before its own, to workers that are running, so waiting ends.
class GradJob {
 public:
  GradJob(const Launch& launch, std::byte* workspace)
      : launch_(launch),
        call_(launch.call),
        kernels_(launch.kernels),
        workspace_(workspace),
        width_(call_.head_dim),
        padded_width_(RoundUp(width_, kernels_.panel_width)),
        num_heads_(call_.num_heads),
        chunks_to_pack_(launch.tiling.num_chunks()),
        sequences_(call_.problem.num_batches()),
        blocks_(launch.tiling.num_blocks()),
        chunks_to_store_(launch.tiling.num_chunks()) {}

  void Work(const Worker& worker) {
    std::byte* mine =
        workspace_ + launch_.layout.worker_begin + worker.index * launch_.layout.worker_bytes;
    for (int64_t i = chunks_to_pack_.Next(); i >= 0; i = chunks_to_pack_.Next()) {
      PackChunk(i, ArrayAt<float>(mine, launch_.layout.key_rows));
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) ZeroUnused(b);
    worker.barrier->ArriveAndWait();
    Scratch scratch(launch_, mine);
    for (int64_t i = blocks_.Next(); i >= 0; i = blocks_.Next()) {
      DoBlock(launch_.tiling.Block(i), scratch);
    }
    worker.barrier->ArriveAndWait();
    for (int64_t i = chunks_to_store_.Next(); i >= 0; i = chunks_to_store_.Next()) {
      StoreKeyGradients(launch_.tiling.Chunk(i));
    }
  }

 private:
  // A worker's part of the workspace.
  struct Scratch {
    Scratch(const Launch& launch, std::byte* mine)
        : queries(ArrayAt<float>(mine, launch.layout.queries)),
          query_panels(ArrayAt<float>(mine, launch.layout.query_panels)),
          scores(ArrayAt<float>(mine, launch.layout.scores)),
          dq_sums(ArrayAt<float>(mine, launch.layout.dq_sums)),
          weights(ArrayAt<float>(mine, launch.layout.pair_values)),
          dw_sums(weights + launch.rows_per_block * launch.call.num_heads) {}
    float* queries;
    float* query_panels;
    float* scores;
    float* dq_sums;
    float* weights;
    float* dw_sums;
  };

  struct RowState {
    int64_t num_keys = 0;  // visible
    float lse = 0;
    float row_scale = 1;
    float teacher_sum = 0;
    double loss = 0;
  };

  // One chunk of keys as one block of rows meets it.
  struct Meeting {
    const RowBlock& block;
    KeyChunk chunk;
    int64_t chunk_index = 0;
    int64_t num_keys = 0;             // keys of the chunk that any row of the block sees
    bool visible_pairs_only = false;  // a masked zero could meet an infinity or a NaN
  };

  float* TransposedKeys(const KeyChunk& chunk) const {
    return ArrayAt<float>(workspace_, launch_.layout.transposed_keys) +
           chunk.padded_key_begin * width_;
  }
  float* KeyPanels(const KeyChunk& chunk) const {
    return ArrayAt<float>(workspace_, launch_.layout.key_panels) +
           chunk.padded_key_begin * padded_width_;
  }
  float* KeyGradients(const KeyChunk& chunk) const {
    return ArrayAt<float>(workspace_, launch_.layout.dk_sums) +
           chunk.padded_key_begin * padded_width_;
  }
  Counter* Ticket(int64_t chunk) const {
    return std::launder(
        ArrayAt<Counter>(workspace_, launch_.layout.chunk_tickets + chunk * int64_t{kAlignment}));
  }
  uint8_t* ChunkFinite(int64_t chunk) const {
    return ArrayAt<uint8_t>(workspace_, launch_.layout.chunk_finite + chunk);
  }

  void PackChunk(int64_t index, float* key_rows) {
    const KeyChunk chunk = launch_.tiling.Chunk(index);
    const bool finite =
        PackKeyChunk(launch_, chunk, 0, key_rows, padded_width_, TransposedKeys(chunk));
    *ChunkFinite(index) = finite;
    kernels_.pack_panels(key_rows, padded_width_, chunk.key_end - chunk.key_begin, width_,
                         KeyPanels(chunk), chunk.padded_keys * kernels_.panel_width);
    std::memset(KeyGradients(chunk), 0, chunk.padded_keys * padded_width_ * sizeof(float));
    new (ArrayAt<void>(workspace_, launch_.layout.chunk_tickets + index * int64_t{kAlignment}))
        Counter(0);
  }

  // Query tokens beyond the used length, and keys that no row sees.
  void ZeroUnused(int64_t batch) {
    const Sequence sequence = call_.problem.sequence(batch);
    const auto zero_rows = [&](const RowView& view, int64_t row_elements) {
      ZeroRows(view, batch, sequence.storage_row_begin, sequence.num_rows,
               sequence.num_allocated_rows, row_elements);
    };
    zero_rows(call_.dq, num_heads_ * width_);
    zero_rows(call_.dw, num_heads_);
    zero_rows(call_.softmax_out, call_.row_stride_p);
    FillRows(call_.loss_rows, batch, sequence, sequence.num_rows, sequence.num_allocated_rows,
             0.0f);
    ZeroRows(call_.dk, batch, sequence.key_begin, sequence.num_rows > 0 ? sequence.num_keys : 0,
             sequence.num_allocated_keys, width_);
  }

  void DoBlock(const RowBlock& block, const Scratch& scratch) {
    const int64_t num_rows = block.row_end - block.row_begin;
    const int64_t num_pairs = num_rows * num_heads_;
    const bool finite = LoadQueries(launch_, block, scratch.queries, padded_width_);
    kernels_.pack_panels(scratch.queries, padded_width_, num_pairs, width_, scratch.query_panels,
                         num_pairs * kernels_.panel_width);
    LoadPerHead(launch_, block, call_.w, scratch.weights);
    std::memset(scratch.dq_sums, 0, num_pairs * padded_width_ * sizeof(float));
    std::memset(scratch.dw_sums, 0, num_pairs * sizeof(float));
    RowState rows[kPairsPerBlock];
    for (int64_t row = 0; row < num_rows; ++row) rows[row] = StartRow(block, row);

    const int64_t first_chunk = launch_.tiling.FirstChunk(block.batch);
    const int64_t most_keys = rows[num_rows - 1].num_keys;
    for (int64_t begin = 0; begin < most_keys; begin += kKeysPerChunk) {
      const int64_t index = first_chunk + begin / kKeysPerChunk;
      Meeting meeting{block, launch_.tiling.Chunk(index), index,
                      std::min(kKeysPerChunk, most_keys - begin), false};
      const bool masked = KeysInChunk(rows[0], begin) < meeting.num_keys;
      meeting.visible_pairs_only = masked && !(finite && *ChunkFinite(index));
      MultiplyScores(launch_, scratch.queries, padded_width_, num_pairs,
                     TransposedKeys(meeting.chunk), meeting.num_keys, scratch.scores);
      for (int64_t row = 0; row < num_rows; ++row) BackwardRow(meeting, row, scratch, rows[row]);
      AddQueryGradients(meeting, rows, scratch);
      AddKeyGradients(meeting, rows, scratch);
    }
    for (int64_t row = 0; row < num_rows; ++row) StoreRow(block, row, scratch, rows[row]);
  }

  // Visible keys of a row in the chunk that begins at `chunk_begin`.
  static int64_t KeysInChunk(const RowState& row, int64_t chunk_begin) {
    return std::clamp<int64_t>(row.num_keys - chunk_begin, 0, kKeysPerChunk);
  }

  RowState StartRow(const RowBlock& block, int64_t row) const {
    RowState state;
    state.num_keys = launch_.VisibleKeys(block, row);
    if (state.num_keys == 0) return state;  // its lse and p are not read
    state.lse = ScalarOfRow(call_.lse, block, row);
    if (call_.row_scale) state.row_scale = ScalarOfRow(call_.row_scale, block, row);
    double sum = 0.0;
    for (int64_t begin = 0; begin < state.num_keys; begin += kKeysPerChunk) {
      float teacher[kScoreStride];
      const int64_t count = KeysInChunk(state, begin);
      LoadTeacher(launch_, block, row, begin, count, teacher);
      sum += kernels_.sum(teacher, count);
    }
    state.teacher_sum = static_cast<float>(sum);
    return state;
  }

  static float ScalarOfRow(const RowView& view, const RowBlock& block, int64_t row) {
    return *static_cast<const float*>(view.At(Launch::RowOffset(view, block, row)));
  }

  // Turns the row's scores into dS and adds to its dw; writes its part of softmax_out.
  void BackwardRow(const Meeting& meeting, int64_t row, const Scratch& scratch, RowState& state) {
    const int64_t key_begin = meeting.chunk.key_begin;
    const int64_t count = KeysInChunk(state, key_begin);
    float* scores = scratch.scores + row * num_heads_ * kScoreStride;
    const float* weights = scratch.weights + row * num_heads_;
    float logits_grad[kScoreStride];
    if (count > 0) {
      float logits[kScoreStride];
      float teacher[kScoreStride];
      float softmax[kScoreStride];
      LoadTeacher(launch_, meeting.block, row, key_begin, count, teacher);
      kernels_.weigh_scores(scores, weights, num_heads_, count, logits);
      GradRow grad;
      grad.logits = logits;
      grad.teacher = teacher;
      grad.count = count;
      grad.lse = state.lse;
      grad.teacher_sum = state.teacher_sum;
      grad.row_scale = state.row_scale;
      grad.softmax = softmax;
      grad.logits_grad = logits_grad;
      kernels_.grad_row(grad);
      if (call_.softmax_out) {
        const int64_t offset = Launch::RowOffset(call_.softmax_out, meeting.block, row) + key_begin;
        std::memcpy(call_.softmax_out.OutAt(offset), softmax, count * sizeof(float));
      }
      if (call_.loss_rows) {
        state.loss += kernels_.loss_terms(logits, teacher, count, -state.lse).relative_entropy;
      }
    }
    kernels_.backward_scores(scores, weights, num_heads_, logits_grad, count, meeting.num_keys,
                             scratch.dw_sums + row * num_heads_);
  }

  // dq += dS x K over the keys of the chunk.
  void AddQueryGradients(const Meeting& meeting, const RowState* rows, const Scratch& scratch) {
    const int64_t num_rows = meeting.block.row_end - meeting.block.row_begin;
    Product product;
    product.a = scratch.scores;
    product.a_row_stride = kScoreStride;
    product.a_depth_stride = 1;
    product.b = KeyPanels(meeting.chunk);
    product.b_panel_stride = meeting.chunk.padded_keys * kernels_.panel_width;
    product.c = scratch.dq_sums;
    product.c_row_stride = padded_width_;
    product.num_rows = num_rows * num_heads_;
    product.num_panels = padded_width_ / kernels_.panel_width;
    product.depth = meeting.num_keys;
    product.accumulate = true;
    if (!meeting.visible_pairs_only) {
      kernels_.multiply(product);
      return;
    }
    product.num_rows = num_heads_;
    for (int64_t row = 0; row < num_rows; ++row) {
      product.depth = KeysInChunk(rows[row], meeting.chunk.key_begin);
      if (product.depth > 0) kernels_.multiply(product);
      product.a += num_heads_ * kScoreStride;
      product.c += num_heads_ * padded_width_;
    }
  }

  // dk += dS^T x Q over the rows of the block, when it is this block's turn.
  void AddKeyGradients(const Meeting& meeting, const RowState* rows, const Scratch& scratch) {
    const int64_t num_rows = meeting.block.row_end - meeting.block.row_begin;
    const int64_t num_pairs = num_rows * num_heads_;
    Product product;
    product.a = scratch.scores;
    product.a_row_stride = 1;
    product.a_depth_stride = kScoreStride;
    product.b = scratch.query_panels;
    product.b_panel_stride = num_pairs * kernels_.panel_width;
    product.c = KeyGradients(meeting.chunk);
    product.c_row_stride = padded_width_;
    product.num_rows = meeting.num_keys;
    product.num_panels = padded_width_ / kernels_.panel_width;
    product.depth = num_pairs;
    product.accumulate = true;
    Counter* ticket = Ticket(meeting.chunk_index);
    WaitUntilReached(*ticket, static_cast<uint32_t>(meeting.block.ticket));
    if (!meeting.visible_pairs_only) {
      kernels_.multiply(product);
    } else {
      // Keys [previous, count) are seen by this row and the later ones.
      int64_t previous = 0;
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t count = KeysInChunk(rows[row], meeting.chunk.key_begin);
        product.num_rows = count - previous;
        product.depth = (num_rows - row) * num_heads_;
        if (product.num_rows > 0) kernels_.multiply(product);
        product.a += num_heads_ * kScoreStride + product.num_rows;
        product.b += num_heads_ * kernels_.panel_width;
        product.c += product.num_rows * padded_width_;
        previous = count;
      }
    }
    ticket->store(static_cast<uint32_t>(meeting.block.ticket) + 1, std::memory_order_release);
    ticket->notify_all();
  }

  void StoreRow(const RowBlock& block, int64_t row, const Scratch& scratch, const RowState& state) {
    const int64_t first_pair = row * num_heads_;
    const int64_t dq_offset = Launch::RowOffset(call_.dq, block, row);
    for (int64_t head = 0; head < num_heads_; ++head) {
      kernels_.store_row(scratch.dq_sums + (first_pair + head) * padded_width_, width_,
                         call_.dq.dtype, call_.dq.OutAt(dq_offset + head * width_));
    }
    std::memcpy(call_.dw.OutAt(Launch::RowOffset(call_.dw, block, row)),
                scratch.dw_sums + first_pair, num_heads_ * sizeof(float));
    if (call_.softmax_out) {
      const int64_t offset = Launch::RowOffset(call_.softmax_out, block, row) + state.num_keys;
      std::memset(call_.softmax_out.OutAt(offset), 0,
                  (call_.row_stride_p - state.num_keys) * sizeof(float));
    }
    const int64_t position = block.row_begin + row;
    FillRows(call_.loss_rows, block.batch, block.sequence, position, position + 1,
             static_cast<float>(state.loss));
  }

  void StoreKeyGradients(const KeyChunk& chunk) {
    const float* sums = KeyGradients(chunk);
    for (int64_t key = chunk.key_begin; key < chunk.key_end; ++key, sums += padded_width_) {
      const int64_t offset = call_.dk.RowOffset(chunk.batch, chunk.sequence.key_begin, key);
      kernels_.store_row(sums, width_, call_.dk.dtype, call_.dk.OutAt(offset));
    }
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const KernelTable& kernels_;
  std::byte* const workspace_;
  const int64_t width_;
  const int64_t padded_width_;
  const int64_t num_heads_;
  Dealer chunks_to_pack_, sequences_, blocks_, chunks_to_store_;
};

Result<Launch> Prepare(const KLLossGradArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckKLLossGrad(args, Precision::kNative), args.metadata, num_threads,
                       LayOutKLLossGrad);
}

}  // namespace

Status KLLossGrad(const KLLossGradArgs& args, const RunOptions& options) {
  return GuardMemory([&]() -> Status {
    return RunJob(
        Prepare(args, options.num_threads), options,
        [](const Launch& launch, std::byte* workspace) { return GradJob(launch, workspace); });
  });
}

Result<size_t> KLLossGradWorkspaceBytes(const KLLossGradArgs& args, int64_t num_threads) {
  return GuardMemory(
      [&]() -> Result<size_t> { return WorkspaceBytesOf(Prepare(args, num_threads)); });
}

double TotalLoss(const float* loss_rows, int64_t num_rows) {
  double total = 0.0;
  for (int64_t row = 0; row < num_rows; ++row) total += loss_rows[row];
  return total;
}

}  // namespace kindling
