#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked_math.h"
#include "base/guard.h"
#include "kindling/operators.h"
#include "ops/launch.h"

namespace kindling {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// One call. Phase 1 packs the keys and zeroes unused rows; phase 2 takes blocks of rows, going over
// the keys once to find the log-sum-exp of every (row, head) where it is not given, and once to add
// up the heads' probabilities.
class TeacherJob {
 public:
  TeacherJob(const Launch& launch, float softmax_scale, std::byte* workspace)
      : launch_(launch),
        call_(launch.call),
        kernels_(launch.kernels),
        softmax_scale_(softmax_scale),
        workspace_(workspace),
        padded_width_(RoundUp(call_.head_dim, kernels_.panel_width)),
        group_(call_.num_heads / call_.num_key_heads),
        chunks_(launch.tiling.num_chunks()),
        sequences_(call_.problem.num_batches()),
        blocks_(launch.tiling.num_blocks()) {}

  void Work(const Worker& worker) {
    std::byte* mine =
        workspace_ + launch_.layout.worker_begin + worker.index * launch_.layout.worker_bytes;
    auto* key_rows = ArrayAt<float>(mine, launch_.layout.key_rows);
    for (int64_t i = chunks_.Next(); i >= 0; i = chunks_.Next()) {
      const KeyChunk chunk = launch_.tiling.Chunk(i);
      for (int64_t key_head = 0; key_head < call_.num_key_heads; ++key_head) {
        PackKeyChunk(launch_, chunk, key_head, key_rows, padded_width_,
                     TransposedKeys(chunk, key_head));
      }
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) {
      const Sequence sequence = call_.problem.sequence(b);
      ZeroRows(call_.p_out, b, sequence.storage_row_begin, sequence.num_rows,
               sequence.num_allocated_rows, call_.row_stride_p);
    }
    worker.barrier->ArriveAndWait();
    Scratch scratch{ArrayAt<float>(mine, launch_.layout.queries),
                    ArrayAt<float>(mine, launch_.layout.scores),
                    ArrayAt<float>(mine, launch_.layout.pair_values),
                    ArrayAt<float>(mine, launch_.layout.row_sums)};
    for (int64_t i = blocks_.Next(); i >= 0; i = blocks_.Next()) {
      DoBlock(launch_.tiling.Block(i), scratch);
    }
  }

 private:
  // A worker's part of the workspace. `pair_values` holds the lse of [rows][heads], and twice as
  // much while it is being found.
  struct Scratch {
    float* queries;
    float* scores;
    float* pair_values;
    float* row_sums;
  };

  float* TransposedKeys(const KeyChunk& chunk, int64_t key_head) const {
    const int64_t padded_key = key_head * launch_.tiling.num_padded_keys() + chunk.padded_key_begin;
    return ArrayAt<float>(workspace_, launch_.layout.transposed_keys) + padded_key * call_.head_dim;
  }

  // Calls visit(row, first head of the group, scores of the group, count) for every row of the
  // block that sees keys of the chunk, key heads ascending.
  template <class Visit>
  void ForScores(const RowBlock& block, int64_t key_begin, int64_t most_keys,
                 const Scratch& scratch, Visit visit) {
    const int64_t num_rows = block.row_end - block.row_begin;
    const KeyChunk chunk =
        launch_.tiling.Chunk(launch_.tiling.FirstChunk(block.batch) + key_begin / kKeysPerChunk);
    const int64_t block_keys = std::min(kKeysPerChunk, most_keys - key_begin);
    for (int64_t key_head = 0; key_head < call_.num_key_heads; ++key_head) {
      MultiplyScores(launch_, scratch.queries + key_head * num_rows * group_ * padded_width_,
                     padded_width_, num_rows * group_, TransposedKeys(chunk, key_head), block_keys,
                     scratch.scores);
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(block, row) - key_begin);
        if (count <= 0) continue;
        visit(row, key_head * group_, scratch.scores + row * group_ * kScoreStride, count);
      }
    }
  }

  void DoBlock(const RowBlock& block, const Scratch& scratch) {
    const int64_t num_rows = block.row_end - block.row_begin;
    const int64_t num_heads = call_.num_heads;
    const int64_t most_keys = launch_.VisibleKeys(block, num_rows - 1);
    LoadQueries(launch_, block, scratch.queries, padded_width_);
    float* lse = scratch.pair_values;
    if (call_.lse) {
      LoadPerHead(launch_, block, call_.lse, lse);
    } else {
      FindLse(block, most_keys, scratch);
    }
    for (int64_t begin = 0; begin < most_keys; begin += kKeysPerChunk) {
      std::memset(scratch.row_sums, 0, num_rows * kKeysPerChunk * sizeof(float));
      ForScores(block, begin, most_keys, scratch,
                [&](int64_t row, int64_t first_head, const float* scores, int64_t count) {
                  for (int64_t head = 0; head < group_; ++head) {
                    kernels_.add_exp(scores + head * kScoreStride, count, softmax_scale_,
                                     lse[row * num_heads + first_head + head],
                                     scratch.row_sums + row * kKeysPerChunk);
                  }
                });
      for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(block, row) - begin);
        if (count <= 0) continue;
        float* sums = scratch.row_sums + row * kKeysPerChunk;
        kernels_.divide(sums, count, static_cast<float>(num_heads), sums);
        const int64_t offset = Launch::RowOffset(call_.p_out, block, row) + begin;
        std::memcpy(call_.p_out.OutAt(offset), sums, count * sizeof(float));
      }
    }
    if (!call_.p_out) return;
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t num_keys = launch_.VisibleKeys(block, row);
      std::memset(call_.p_out.OutAt(Launch::RowOffset(call_.p_out, block, row) + num_keys), 0,
                  (call_.row_stride_p - num_keys) * sizeof(float));
    }
  }

  // Leaves the log-sum-exp of the scaled scores over the visible keys in pair_values.
  void FindLse(const RowBlock& block, int64_t most_keys, const Scratch& scratch) {
    const int64_t num_pairs = (block.row_end - block.row_begin) * call_.num_heads;
    float* max = scratch.pair_values;
    float* sum = scratch.pair_values + num_pairs;
    std::fill_n(max, num_pairs, kMinusInfinity);
    std::fill_n(sum, num_pairs, 0.0f);
    for (int64_t begin = 0; begin < most_keys; begin += kKeysPerChunk) {
      ForScores(block, begin, most_keys, scratch,
                [&](int64_t row, int64_t first_head, const float* scores, int64_t count) {
                  for (int64_t head = 0; head < group_; ++head) {
                    const int64_t pair = row * call_.num_heads + first_head + head;
                    const MaxSum merged = kernels_.merge(
                        {max[pair], sum[pair]},
                        kernels_.max_sum(scores + head * kScoreStride, count, softmax_scale_));
                    max[pair] = merged.max;
                    sum[pair] = merged.sum;
                  }
                });
    }
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
      max[pair] = static_cast<float>(max[pair] + std::log(static_cast<double>(sum[pair])));
    }
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const KernelTable& kernels_;
  const float softmax_scale_;
  std::byte* const workspace_;
  const int64_t padded_width_;
  const int64_t group_;  // query heads per key head
  Dealer chunks_, sequences_, blocks_;
};

Result<Launch> Prepare(const AttentionL1NormArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckAttentionL1Norm(args, Precision::kNative), args.metadata, num_threads,
                       LayOutAttentionL1Norm);
}

}  // namespace

Status AttentionL1Norm(const AttentionL1NormArgs& args, const RunOptions& options) {
  return GuardMemory([&]() -> Status {
    return RunJob(Prepare(args, options.num_threads), options,
                  [&](const Launch& launch, std::byte* workspace) {
                    return TeacherJob(launch, static_cast<float>(args.softmax_scale), workspace);
                  });
  });
}

Result<size_t> AttentionL1NormWorkspaceBytes(const AttentionL1NormArgs& args, int64_t num_threads) {
  return GuardMemory(
      [&]() -> Result<size_t> { return WorkspaceBytesOf(Prepare(args, num_threads)); });
}

}  // namespace kindling
