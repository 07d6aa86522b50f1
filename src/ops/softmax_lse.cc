#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked_math.h"
#include "base/guard.h"
#include "kindling/operators.h"
#include "ops/launch.h"

namespace kindling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One call. Phase 1 packs the keys and fills unused rows, phase 2 takes blocks of rows.
class LseJob {
 public:
  LseJob(const Launch& launch, std::byte* workspace)
      : launch_(launch),
        call_(launch.call),
        kernels_(launch.kernels),
        workspace_(workspace),
        padded_width_(RoundUp(call_.head_dim, kernels_.panel_width)),
        chunks_(launch.tiling.num_chunks()),
        sequences_(call_.problem.num_batches()),
        blocks_(launch.tiling.num_blocks()) {}

  void Work(const Worker& worker) {
    std::byte* mine =
        workspace_ + launch_.layout.worker_begin + worker.index * launch_.layout.worker_bytes;
    auto* key_rows = ArrayAt<float>(mine, launch_.layout.key_rows);
    for (int64_t i = chunks_.Next(); i >= 0; i = chunks_.Next()) {
      const KeyChunk chunk = launch_.tiling.Chunk(i);
      PackKeyChunk(launch_, chunk, 0, key_rows, padded_width_,
                   TransposedKeys(chunk.padded_key_begin));
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) {
      const Sequence sequence = call_.problem.sequence(b);
      FillRows(call_.lse_out, b, sequence, sequence.num_rows, sequence.num_allocated_rows,
               kMinusInfinity);
      FillRows(call_.loss_rows, b, sequence, sequence.num_rows, sequence.num_allocated_rows, 0.0f);
    }
    worker.barrier->ArriveAndWait();
    for (int64_t i = blocks_.Next(); i >= 0; i = blocks_.Next()) {
      DoBlock(launch_.tiling.Block(i), mine);
    }
  }

 private:
  // What a row has seen of its keys so far.
  struct RowState {
    MaxSum logits{kMinusInfinity, 0.0f};
    double relative_entropy = 0.0;
    double teacher_sum = 0.0;
  };

  float* TransposedKeys(int64_t padded_key) const {
    return ArrayAt<float>(workspace_, launch_.layout.transposed_keys) + padded_key * call_.head_dim;
  }

  void DoBlock(const RowBlock& block, std::byte* mine) {
    auto* queries = ArrayAt<float>(mine, launch_.layout.queries);
    auto* scores = ArrayAt<float>(mine, launch_.layout.scores);
    auto* weights = ArrayAt<float>(mine, launch_.layout.pair_values);
    const int64_t num_rows = block.row_end - block.row_begin;
    const int64_t num_heads = call_.num_heads;
    LoadQueries(launch_, block, queries, padded_width_);
    LoadPerHead(launch_, block, call_.w, weights);
    const int64_t most_keys = launch_.VisibleKeys(block, num_rows - 1);
    RowState states[kPairsPerBlock];
    const int64_t first_chunk = launch_.tiling.FirstChunk(block.batch);
    for (int64_t begin = 0; begin < most_keys; begin += kKeysPerChunk) {
      const KeyChunk chunk = launch_.tiling.Chunk(first_chunk + begin / kKeysPerChunk);
      const int64_t block_keys = std::min(kKeysPerChunk, most_keys - begin);
      MultiplyScores(launch_, queries, padded_width_, num_rows * num_heads,
                     TransposedKeys(chunk.padded_key_begin), block_keys, scores);
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(block, row) - begin);
        if (count > 0) AddChunk(block, row, begin, count, scores, weights, states[row]);
      }
    }
    for (int64_t row = 0; row < num_rows; ++row) {
      const RowState& state = states[row];
      const bool sees_keys = launch_.VisibleKeys(block, row) > 0;
      const double lse = state.logits.max + std::log(static_cast<double>(state.logits.sum));
      const int64_t position = block.row_begin + row;
      FillRows(call_.lse_out, block.batch, block.sequence, position, position + 1,
               sees_keys ? static_cast<float>(lse) : kMinusInfinity);
      // No teacher, no loss: an infinite lse must not make it a NaN.
      const double loss =
          state.relative_entropy + (state.teacher_sum == 0.0 ? 0.0 : state.teacher_sum * lse);
      FillRows(call_.loss_rows, block.batch, block.sequence, position, position + 1,
               sees_keys ? static_cast<float>(loss) : 0.0f);
    }
  }

  void AddChunk(const RowBlock& block, int64_t row, int64_t key_begin, int64_t count,
                const float* scores, const float* weights, RowState& state) {
    float logits[kScoreStride];
    kernels_.weigh_scores(scores + row * call_.num_heads * kScoreStride,
                          weights + row * call_.num_heads, call_.num_heads, count, logits);
    state.logits = kernels_.merge(state.logits, kernels_.max_sum(logits, count, 1.0f));
    if (!call_.loss_rows) return;
    float teacher[kScoreStride];
    LoadTeacher(launch_, block, row, key_begin, count, teacher);
    const LossTerms terms = kernels_.loss_terms(logits, teacher, count, 0.0f);
    state.relative_entropy += terms.relative_entropy;
    state.teacher_sum += terms.teacher_sum;
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const KernelTable& kernels_;
  std::byte* const workspace_;
  const int64_t padded_width_;
  Dealer chunks_, sequences_, blocks_;
};

Result<Launch> Prepare(const SoftmaxLseArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckSoftmaxLse(args, Precision::kNative), args.metadata, num_threads,
                       LayOutSoftmaxLse);
}

}  // namespace

Status SoftmaxLse(const SoftmaxLseArgs& args, const RunOptions& options) {
  return GuardMemory([&]() -> Status {
    return RunJob(
        Prepare(args, options.num_threads), options,
        [](const Launch& launch, std::byte* workspace) { return LseJob(launch, workspace); });
  });
}

Result<size_t> SoftmaxLseWorkspaceBytes(const SoftmaxLseArgs& args, int64_t num_threads) {
  return GuardMemory(
      [&]() -> Result<size_t> { return WorkspaceBytesOf(Prepare(args, num_threads)); });
}

}  // namespace kindling
