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
        attention_(launch.attention),
        kernels_(launch.kernels),
        softmax_scale_(softmax_scale),
        workspace_(launch, workspace),
        group_(attention_.num_heads / attention_.num_key_heads),
        pack_phase_(launch),
        lse_units_(launch.schedule.num_units()),
        units_(launch.schedule.num_units()) {}

  void Work(const Worker& worker) {
    pack_phase_.Work(worker, workspace_, attention_, launch_.layout.attention,
                     [this](int64_t batch, const Sequence& sequence) {
                       ZeroRows(call_.p_out, batch, sequence.storage_row_begin, sequence.num_rows,
                                sequence.num_allocated_rows, call_.row_stride_p);
                     });
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
          num_rows(block.num_rows()),
          num_pairs(num_rows * job.attention_.num_heads),
          most_keys(job.launch_.tiling.MostVisibleKeys(block)),
          scratch(job.workspace_.OfWorker(worker), job.launch_.layout.attention) {
      const WorkspaceLayout& layout = job.launch_.layout;
      std::byte* mine = job.workspace_.OfWorker(worker);
      pair_values = ArrayAt<float>(mine, layout.pair_values);
      row_sums = ArrayAt<float>(mine, layout.row_sums);
      totals = ArrayAt<float>(job.workspace_.TotalsOf(unit, worker), layout.pair_totals);
      job.attention_.LoadQueries(block, BlockRows(block), scratch.queries);
    }

    Unit unit;
    RowBlock block;
    int64_t num_rows, num_pairs, most_keys;
    OperandScratch scratch;
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
    for (int64_t key_head = 0; key_head < attention_.num_key_heads; ++key_head) {
      const int64_t group_pairs = part.num_rows * group_;
      attention_.MultiplyScores(
          part.scratch.queries + key_head * group_pairs * attention_.row_words, group_pairs,
          workspace_.TransposedKeys(attention_, launch_.layout.attention, chunk, key_head),
          num_keys, part.scratch.scores);
      for (int64_t row = 0; row < part.num_rows; ++row) {
        const int64_t count =
            std::min(kKeysPerChunk, launch_.VisibleKeys(part.block, row) - key_begin);
        if (count <= 0) continue;
        visit(row, key_head * group_, part.scratch.scores + row * group_ * kScoreStride, count);
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
                      const int64_t pair = row * attention_.num_heads + first_head + head;
                      merge(max[pair], sum[pair],
                            kernels_.max_sum(scores + head * kScoreStride, count, softmax_scale_));
                    }
                  });
      }
      const Turn turn(workspace_.SpansDone(part.unit.block), span);
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
      attention_.LoadPerHead(block, BlockRows(block), call_.lse, part.pair_values);
      lse = part.pair_values;
    }
    ForSpans(part.unit, part.most_keys, [&](int64_t, int64_t begin, int64_t end, bool last) {
      for (int64_t key = begin; key < end; key += kKeysPerChunk) {
        std::memset(part.row_sums, 0, part.num_rows * kKeysPerChunk * sizeof(float));
        ForScores(part, key, end,
                  [&](int64_t row, int64_t first_head, const float* scores, int64_t count) {
                    for (int64_t head = 0; head < group_; ++head) {
                      kernels_.add_exp(scores + head * kScoreStride, count, softmax_scale_,
                                       lse[row * attention_.num_heads + first_head + head],
                                       part.row_sums + row * kKeysPerChunk);
                    }
                  });
        for (int64_t row = 0; row < part.num_rows; ++row) StoreChunk(part, row, key);
      }
      if (!last || !call_.p_out) return;
      for (int64_t row = 0; row < part.num_rows; ++row) {
        const int64_t num_keys = launch_.VisibleKeys(block, row);
        std::memset(
            call_.p_out.OutAt(RowOffset(call_.p_out, block, block.row_begin + row) + num_keys), 0,
            (call_.row_stride_p - num_keys) * sizeof(float));
      }
    });
  }

  void StoreChunk(const Part& part, int64_t row, int64_t key_begin) {
    const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(part.block, row) - key_begin);
    if (count <= 0) return;
    float* sums = part.row_sums + row * kKeysPerChunk;
    kernels_.divide(sums, count, static_cast<float>(attention_.num_heads), sums);
    const int64_t offset =
        RowOffset(call_.p_out, part.block, part.block.row_begin + row) + key_begin;
    std::memcpy(call_.p_out.OutAt(offset), sums, count * sizeof(float));
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const PackedOperands& attention_;
  const KernelTable& kernels_;
  const float softmax_scale_;
  const Workspace workspace_;
  const int64_t group_;  // query heads per key head
  PackPhase pack_phase_;
  Dealer lse_units_, units_;
};

constexpr OperatorLayout kLayout = {LayOutAttentionL1Norm, Heads::kAsGiven};

Result<Launch> Prepare(const AttentionL1NormArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckAttentionL1Norm(args, Precision::kNative), args.metadata, num_threads,
                       kLayout);
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

int64_t AttentionL1NormWorkspaceLimit(const CallShape& shape, int64_t num_threads) {
  return WorkspaceLimit(shape, num_threads, kLayout, &WorkspaceDims::attention);
}

}  // namespace kindling
