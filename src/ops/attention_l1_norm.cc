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

// One call. Phase 1 packs the keys and zeroes unused rows. Where lse is not given, phase 2 goes
// over the keys of every unit of rows to find it; phase 3 goes over them to add up the heads'
// probabilities. A worker that has whole blocks takes a block through both phases at once.
class TeacherJob {
 public:
  TeacherJob(const Launch& launch, float softmax_scale, std::byte* workspace)
      : launch_(launch),
        call_(launch.call),
        kernels_(launch.kernels),
        softmax_scale_(softmax_scale),
        workspace_(launch, workspace),
        group_(call_.num_heads / call_.num_key_heads),
        chunks_(launch.tiling.num_chunks()),
        sequences_(call_.problem.num_batches()),
        lse_units_(launch.schedule.num_units()),
        units_(launch.schedule.num_units()) {}

  void Work(const Worker& worker) {
    std::byte* mine = workspace_.OfWorker(worker);
    if (worker.index == 0) workspace_.StartTurns();
    for (int64_t i = chunks_.Next(); i >= 0; i = chunks_.Next()) {
      const KeyChunk chunk = launch_.tiling.Chunk(i);
      for (int64_t key_head = 0; key_head < call_.num_key_heads; ++key_head) {
        PackKeyChunk(launch_, chunk, key_head, ArrayAt<Word>(mine, launch_.layout.key_rows),
                     workspace_.TransposedKeys(chunk, key_head));
      }
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) {
      const Sequence sequence = call_.problem.sequence(b);
      ZeroRows(call_.p_out, b, sequence.storage_row_begin, sequence.num_rows,
               sequence.num_allocated_rows, call_.row_stride_p);
    }
    worker.barrier->ArriveAndWait();
    const bool split = launch_.schedule.splits_blocks();
    if (split && !call_.lse) {
      for (int64_t i = lse_units_.Next(); i >= 0; i = lse_units_.Next()) {
        Part part(*this, worker, i);
        FindLse(part);
      }
      worker.barrier->ArriveAndWait();
    }
    for (int64_t i = units_.Next(); i >= 0; i = units_.Next()) {
      Part part(*this, worker, i);
      if (!split && !call_.lse) FindLse(part);
      AddHeads(part);
    }
  }

 private:
  // A unit, with its worker's part of the workspace and its block's queries loaded.
  struct Part {
    Part(const TeacherJob& job, const Worker& worker, int64_t index)
        : unit(job.launch_.schedule.At(index)),
          block(job.launch_.tiling.Block(unit.block)),
          num_rows(block.row_end - block.row_begin),
          num_pairs(num_rows * job.call_.num_heads),
          most_keys(job.launch_.tiling.MostVisibleKeys(block)) {
      const WorkspaceLayout& layout = job.launch_.layout;
      std::byte* mine = job.workspace_.OfWorker(worker);
      queries = ArrayAt<Word>(mine, layout.queries);
      scores = ArrayAt<float>(mine, layout.scores);
      pair_values = ArrayAt<float>(mine, layout.pair_values);
      row_sums = ArrayAt<float>(mine, layout.row_sums);
      totals = ArrayAt<float>(job.workspace_.TotalsOf(unit, worker), layout.pair_totals);
      LoadQueries(job.launch_, block, queries);
    }

    Unit unit;
    RowBlock block;
    int64_t num_rows, num_pairs, most_keys;
    Word* queries;
    float* scores;
    float* pair_values;  // [2][pairs]: max and sum of a span; or the given lse
    float* row_sums;
    float* totals;  // [2][pairs]: max and sum; the lse when all spans are in
  };

  // Calls visit(row, first head of the group, scores of the group, count) for every row of the
  // block that sees keys of the chunk, key heads ascending.
  template <class Visit>
  void ForScores(const Part& part, int64_t key_begin, int64_t key_end, Visit visit) {
    const KeyChunk chunk = launch_.tiling.Chunk(launch_.ChunkIndex(part.block, key_begin));
    const int64_t num_keys = std::min(kKeysPerChunk, key_end - key_begin);
    for (int64_t key_head = 0; key_head < call_.num_key_heads; ++key_head) {
      MultiplyScores(launch_, part.queries + key_head * part.num_rows * group_ * launch_.row_words,
                     part.num_rows * group_, workspace_.TransposedKeys(chunk, key_head), num_keys,
                     part.scores);
      for (int64_t row = 0; row < part.num_rows; ++row) {
        const int64_t count =
            std::min(kKeysPerChunk, launch_.VisibleKeys(part.block, row) - key_begin);
        if (count <= 0) continue;
        visit(row, key_head * group_, part.scores + row * group_ * kScoreStride, count);
      }
    }
  }

  // Leaves the log-sum-exp of the scaled scores over the visible keys in the totals.
  void FindLse(const Part& part) {
    const int64_t num_pairs = part.num_pairs;
    float* max = part.pair_values;
    float* sum = part.pair_values + num_pairs;
    const auto merge = [this](float& max_into, float& sum_into, MaxSum other) {
      const MaxSum merged = kernels_.merge({max_into, sum_into}, other);
      max_into = merged.max;
      sum_into = merged.sum;
    };
    ForSpans(part.unit, part.most_keys, [&](int64_t span, int64_t begin, int64_t end, bool last) {
      std::fill_n(max, num_pairs, kMinusInfinity);
      std::fill_n(sum, num_pairs, 0.0f);
      for (int64_t key = begin; key < end; key += kKeysPerChunk) {
        ForScores(part, key, end,
                  [&](int64_t row, int64_t first_head, const float* scores, int64_t count) {
                    for (int64_t head = 0; head < group_; ++head) {
                      const int64_t pair = row * call_.num_heads + first_head + head;
                      merge(max[pair], sum[pair],
                            kernels_.max_sum(scores + head * kScoreStride, count, softmax_scale_));
                    }
                  });
      }
      const SpanTurn turn(launch_, workspace_, part.unit, span);
      if (span == 0) std::memcpy(part.totals, max, 2 * num_pairs * sizeof(float));
      for (int64_t pair = 0; pair < num_pairs; ++pair) {
        float& total_max = part.totals[pair];
        float& total_sum = part.totals[num_pairs + pair];
        if (span > 0) merge(total_max, total_sum, {max[pair], sum[pair]});
        if (last) {
          total_max = static_cast<float>(total_max + std::log(static_cast<double>(total_sum)));
        }
      }
    });
  }

  void AddHeads(const Part& part) {
    const RowBlock& block = part.block;
    const float* lse = part.totals;
    if (call_.lse) {
      LoadPerHead(launch_, block, call_.lse, part.pair_values);
      lse = part.pair_values;
    }
    ForSpans(part.unit, part.most_keys, [&](int64_t, int64_t begin, int64_t end, bool last) {
      for (int64_t key = begin; key < end; key += kKeysPerChunk) {
        std::memset(part.row_sums, 0, part.num_rows * kKeysPerChunk * sizeof(float));
        ForScores(part, key, end,
                  [&](int64_t row, int64_t first_head, const float* scores, int64_t count) {
                    for (int64_t head = 0; head < group_; ++head) {
                      kernels_.add_exp(scores + head * kScoreStride, count, softmax_scale_,
                                       lse[row * call_.num_heads + first_head + head],
                                       part.row_sums + row * kKeysPerChunk);
                    }
                  });
        for (int64_t row = 0; row < part.num_rows; ++row) StoreChunk(part, row, key);
      }
      if (!last || !call_.p_out) return;
      for (int64_t row = 0; row < part.num_rows; ++row) {
        const int64_t num_keys = launch_.VisibleKeys(block, row);
        std::memset(call_.p_out.OutAt(Launch::RowOffset(call_.p_out, block, row) + num_keys), 0,
                    (call_.row_stride_p - num_keys) * sizeof(float));
      }
    });
  }

  void StoreChunk(const Part& part, int64_t row, int64_t key_begin) {
    const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(part.block, row) - key_begin);
    if (count <= 0) return;
    float* sums = part.row_sums + row * kKeysPerChunk;
    kernels_.divide(sums, count, static_cast<float>(call_.num_heads), sums);
    const int64_t offset = Launch::RowOffset(call_.p_out, part.block, row) + key_begin;
    std::memcpy(call_.p_out.OutAt(offset), sums, count * sizeof(float));
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const KernelTable& kernels_;
  const float softmax_scale_;
  const Workspace workspace_;
  const int64_t group_;  // query heads per key head
  Dealer chunks_, sequences_, lse_units_, units_;
};

Result<Launch> Prepare(const AttentionL1NormArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckAttentionL1Norm(args, Precision::kNative), args.metadata, num_threads,
                       LayOutAttentionL1Norm, Heads::kAsGiven);
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
