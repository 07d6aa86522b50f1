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
        indexer_(launch.indexer),
        kernels_(launch.kernels),
        workspace_(launch, workspace),
        pack_phase_(launch),
        units_(launch.schedule.num_units()) {}

  void Work(const Worker& worker) {
    pack_phase_.Work(worker, workspace_, indexer_, launch_.layout.indexer,
                     [this](int64_t batch, const Sequence& sequence) {
                       FillRows(call_.lse_out, batch, sequence, sequence.num_rows,
                                sequence.num_allocated_rows, kMinusInfinity);
                       FillRows(call_.loss_rows, batch, sequence, sequence.num_rows,
                                sequence.num_allocated_rows, 0.0f);
                     });
    for (int64_t i = units_.Next(); i >= 0; i = units_.Next()) {
      const Unit unit = launch_.schedule.At(i);
      DoUnit(unit, workspace_.OfWorker(worker),
             ArrayAt<RowState>(workspace_.TotalsOf(unit, worker), launch_.layout.row_totals));
    }
  }

 private:
  // What a row has seen of its keys so far.
  struct RowState {
    // What the entropy counts logits from: their size must not cost it digits.
    double origin() const { return std::isfinite(logits.max) ? logits.max : 0.0; }
    // The entropy, counted from elsewhere. No teacher, no loss: an infinity must not make it a NaN.
    double EntropyFrom(double other) const {
      return relative_entropy + (teacher_sum == 0.0 ? 0.0 : teacher_sum * (other - origin()));
    }

    MaxSum logits{kMinusInfinity, 0.0f};
    double relative_entropy = 0.0;  // sum of p (ln p - (I - origin))
    double teacher_sum = 0.0;
  };
  static_assert(sizeof(RowState) <= 32);  // WorkspaceLayout::row_totals

  void DoUnit(const Unit& unit, std::byte* mine, RowState* totals) {
    const RowBlock block = launch_.tiling.Block(unit.block);
    const OperandScratch scratch(mine, launch_.layout.indexer);
    auto* weights = ArrayAt<float>(mine, launch_.layout.pair_values);
    const int64_t num_rows = block.num_rows();
    const BlockRows rows(block);
    indexer_.LoadQueries(block, rows, scratch.queries);
    indexer_.LoadPerHead(block, rows, call_.w, weights);
    const int64_t most_keys = launch_.tiling.MostVisibleKeys(block);
    ForSpans(unit, most_keys, [&](int64_t span, int64_t span_begin, int64_t span_end, bool last) {
      RowState states[kPairsPerBlock];
      for (int64_t begin = span_begin; begin < span_end; begin += kKeysPerChunk) {
        const KeyChunk chunk = launch_.tiling.Chunk(launch_.ChunkIndex(block, begin));
        indexer_.MultiplyScores(scratch.queries, num_rows * indexer_.num_heads,
                                workspace_.TransposedKeys(indexer_, launch_.layout.indexer, chunk),
                                std::min(kKeysPerChunk, span_end - begin), scratch.scores);
        for (int64_t row = 0; row < num_rows; ++row) {
          const int64_t count = std::min(kKeysPerChunk, launch_.VisibleKeys(block, row) - begin);
          if (count > 0) AddChunk(block, row, begin, count, scratch.scores, weights, states[row]);
        }
      }
      const Turn turn(workspace_.SpansDone(unit.block), span);
      for (int64_t row = 0; row < num_rows; ++row) {
        totals[row] = span == 0 ? states[row] : Merge(totals[row], states[row]);
        if (last) StoreRow(block, row, totals[row]);
      }
    });
  }

  void AddChunk(const RowBlock& block, int64_t row, int64_t key_begin, int64_t count,
                const float* scores, const float* weights, RowState& state) {
    float logits[kScoreStride];
    kernels_.weigh_scores(scores + row * indexer_.num_heads * kScoreStride,
                          weights + row * indexer_.num_heads, indexer_.num_heads, count, logits);
    RowState chunk;
    chunk.logits = kernels_.max_sum(logits, count, 1.0f);
    if (call_.loss_rows) {
      float teacher[kScoreStride];
      LoadTeacher(launch_, block, row, key_begin, count, teacher);
      const LossTerms terms =
          kernels_.loss_terms(logits, teacher, count, static_cast<float>(-chunk.origin()));
      chunk.relative_entropy = terms.relative_entropy;
      chunk.teacher_sum = terms.teacher_sum;
    }
    state = Merge(state, chunk);
  }

  RowState Merge(const RowState& a, const RowState& b) const {
    RowState both;
    both.logits = kernels_.merge(a.logits, b.logits);
    both.relative_entropy = a.EntropyFrom(both.origin()) + b.EntropyFrom(both.origin());
    both.teacher_sum = a.teacher_sum + b.teacher_sum;
    return both;
  }

  void StoreRow(const RowBlock& block, int64_t row, const RowState& state) {
    const bool sees_keys = launch_.VisibleKeys(block, row) > 0;
    const double lse = state.logits.max + std::log(static_cast<double>(state.logits.sum));
    const int64_t position = block.row_begin + row;
    FillRows(call_.lse_out, block.batch, block.sequence, position, position + 1,
             sees_keys ? static_cast<float>(lse) : kMinusInfinity);
    const double loss = state.EntropyFrom(lse);
    FillRows(call_.loss_rows, block.batch, block.sequence, position, position + 1,
             sees_keys ? static_cast<float>(loss) : 0.0f);
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const PackedOperands& indexer_;
  const KernelTable& kernels_;
  const Workspace workspace_;
  PackPhase pack_phase_;
  Dealer units_;
};

constexpr OperatorLayout kLayout = {LayOutSoftmaxLse, Heads::kAsGiven};

Result<Launch> Prepare(const SoftmaxLseArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckSoftmaxLse(args, Precision::kNative), args.metadata, num_threads,
                       kLayout);
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

int64_t SoftmaxLseWorkspaceLimit(const CallShape& shape, int64_t num_threads) {
  return WorkspaceLimit(shape, num_threads, kLayout, &WorkspaceDims::indexer);
}

}  // namespace kindling
