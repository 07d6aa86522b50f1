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

// One call. Phase 1 packs the keys and fills unused rows, phase 2 takes units of rows.
class LseJob {
 public:
  LseJob(const Launch& launch, std::byte* workspace)
      : launch_(launch),
        call_(launch.call),
        kernels_(launch.kernels),
        workspace_(launch, workspace),
        chunks_(launch.tiling.num_chunks()),
        sequences_(call_.problem.num_batches()),
        units_(launch.schedule.num_units()) {}

  void Work(const Worker& worker) {
    std::byte* mine = workspace_.OfWorker(worker);
    if (worker.index == 0) workspace_.StartTurns();
    for (int64_t i = chunks_.Next(); i >= 0; i = chunks_.Next()) {
      const KeyChunk chunk = launch_.tiling.Chunk(i);
      PackKeyChunk(launch_, chunk, 0, ArrayAt<Word>(mine, launch_.layout.key_rows),
                   workspace_.TransposedKeys(chunk));
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) {
      const Sequence sequence = call_.problem.sequence(b);
      FillRows(call_.lse_out, b, sequence, sequence.num_rows, sequence.num_allocated_rows,
               kMinusInfinity);
      FillRows(call_.loss_rows, b, sequence, sequence.num_rows, sequence.num_allocated_rows, 0.0f);
    }
    worker.barrier->ArriveAndWait();
    for (int64_t i = units_.Next(); i >= 0; i = units_.Next()) {
      const Unit unit = launch_.schedule.At(i);
      DoUnit(unit, mine,
             ArrayAt<RowState>(workspace_.TotalsOf(unit, worker), launch_.layout.row_totals));
    }
  }

 private:
  // What a row has seen of its keys so far.
  struct RowState {
    MaxSum logits{kMinusInfinity, 0.0f};
    double relative_entropy = 0.0;
    double teacher_sum = 0.0;
  };
  static_assert(sizeof(RowState) <= 32);  // WorkspaceLayout::row_totals

  void DoUnit(const Unit& unit, std::byte* mine, RowState* totals) {
    const RowBlock block = launch_.tiling.Block(unit.block);
    auto* queries = ArrayAt<Word>(mine, launch_.layout.queries);
    auto* scores = ArrayAt<float>(mine, launch_.layout.scores);
    auto* weights = ArrayAt<float>(mine, launch_.layout.pair_values);
    const int64_t num_rows = block.row_end - block.row_begin;
    LoadQueries(launch_, block, queries);
    LoadPerHead(launch_, block, call_.w, weights);
    const int64_t most_keys = launch_.tiling.MostVisibleKeys(block);
    ForSpans(unit, most_keys, [&](int64_t span, int64_t span_begin, int64_t span_end, bool last) {
      RowState states[kPairsPerBlock];
      for (int64_t begin = span_begin; begin < span_end; begin += kKeysPerChunk) {
        const KeyChunk chunk = launch_.tiling.Chunk(launch_.ChunkIndex(block, begin));
        MultiplyScores(launch_, queries, num_rows * call_.num_heads,
                       workspace_.TransposedKeys(chunk), std::min(kKeysPerChunk, span_end - begin),
                       scores);
        for (int64_t row = 0; row < num_rows; ++row) {
          const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(block, row) - begin);
          if (count > 0) AddChunk(block, row, begin, count, scores, weights, states[row]);
        }
      }
      const SpanTurn turn(launch_, workspace_, unit, span);
      for (int64_t row = 0; row < num_rows; ++row) {
        totals[row] = span == 0 ? states[row] : Merge(totals[row], states[row]);
        if (last) StoreRow(block, row, totals[row]);
      }
    });
  }

  void AddChunk(const RowBlock& block, int64_t row, int64_t key_begin, int64_t count,
                const float* scores, const float* weights, RowState& state) {
    float logits[kScoreStride];
    kernels_.weigh_scores(scores + row * call_.num_heads * kScoreStride,
                          weights + row * call_.num_heads, call_.num_heads, count, logits);
    RowState chunk;
    chunk.logits = kernels_.max_sum(logits, count, 1.0f);
    if (call_.loss_rows) {
      float teacher[kScoreStride];
      LoadTeacher(launch_, block, row, key_begin, count, teacher);
      const LossTerms terms = kernels_.loss_terms(logits, teacher, count, 0.0f);
      chunk.relative_entropy = terms.relative_entropy;
      chunk.teacher_sum = terms.teacher_sum;
    }
    state = Merge(state, chunk);
  }

  RowState Merge(const RowState& a, const RowState& b) const {
    return {kernels_.merge(a.logits, b.logits), a.relative_entropy + b.relative_entropy,
            a.teacher_sum + b.teacher_sum};
  }

  void StoreRow(const RowBlock& block, int64_t row, const RowState& state) {
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

  const Launch& launch_;
  const OperatorCall& call_;
  const KernelTable& kernels_;
  const Workspace workspace_;
  Dealer chunks_, sequences_, units_;
};

Result<Launch> Prepare(const SoftmaxLseArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckSoftmaxLse(args, Precision::kNative), args.metadata, num_threads,
                       LayOutSoftmaxLse, Heads::kAsGiven);
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
