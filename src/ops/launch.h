// What the three operators do alike: choose tiles and workers, carve the workspace, run, deal
// units.
#ifndef KINDLING_SRC_OPS_LAUNCH_H_
#define KINDLING_SRC_OPS_LAUNCH_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checked_math.h"
#include "kernels/kernels.h"
#include "kindling/runtime.h"
#include "kindling/status.h"
#include "kindling/tensor.h"
#include "ops/operands.h"
#include "ops/worker_pool.h"
#include "plan/schedule.h"
#include "plan/tiling.h"
#include "plan/workspace.h"
#include "problem/operator_call.h"

namespace kindling {

// (row, head) pairs of a block: 256 x 128 fp32 queries are 128 KiB, so that a block's queries, its
// scores against one chunk of keys and its gradient sums stay in L2 together. A block has at most
// this many rows, and more pairs only where one row has more heads.
inline constexpr int64_t kPairsPerBlock = 256;

// Sums over keys are formed per span of this many keys, counted from a batch's first key, and the
// spans are added in ascending order: so a span's sum may come from any worker. With 256 pairs a
// span is some milliseconds of work.
inline constexpr int64_t kKeysPerSpan = 8 * kKeysPerChunk;

// A checked call, cut into tiles for one instruction set, with the layout of its workspace.
struct Launch {
  Launch(OperatorCall checked, Isa isa, Heads heads, int64_t max_workers);

  // Keys that row `row` of `block` sees.
  int64_t VisibleKeys(const RowBlock& block, int64_t row) const {
    return call.problem.NumVisibleKeys(block.sequence, block.row_begin + row);
  }
  // The chunk of a block's sequence that begins at `key_begin`.
  int64_t ChunkIndex(const RowBlock& block, int64_t key_begin) const {
    return tiling.FirstChunk(block.batch) + key_begin / kKeysPerChunk;
  }

  OperatorCall call;
  // Those that the operator does without have no heads.
  PackedOperands indexer;
  PackedOperands attention;
  const KernelTable& kernels;  // for what stands between products
  int64_t rows_per_block;
  Tiling tiling;
  Schedule schedule;
  int64_t num_workers;
  WorkspaceLayout layout;
};

using LayOutFunction = WorkspaceLayout (*)(const WorkspaceDims& dims);

// What sizes of an operator's arrays depend on besides a call's shape.
struct OperatorLayout {
  LayOutFunction lay_out;
  Heads heads;
};

// Checks the record and num_threads and prepares the launch.
Result<Launch> PrepareLaunch(Result<OperatorCall> checked, const ConstTensor& metadata,
                             int64_t num_threads, const OperatorLayout& op);

// Rows of a block, by position, in the order in which an operator computes them.
class BlockRows {
 public:
  BlockRows() = default;
  // All of them, ascending.
  explicit BlockRows(const RowBlock& block) {
    for (int64_t row = block.row_begin; row < block.row_end; ++row) Add(row);
  }
  void Add(int64_t position) { positions_[count_++] = position; }
  operator std::span<const int64_t>() const {  // NOLINT(google-explicit-constructor)
    return {positions_, static_cast<size_t>(count_)};
  }

 private:
  int64_t count_ = 0;
  int64_t positions_[kPairsPerBlock];
};

// Hands out 0, 1, 2, ... to whoever asks.
class Dealer {
 public:
  explicit Dealer(int64_t count) : count_(count) {}
  // The next unit, or -1 when all are dealt.
  int64_t Next() {
    const int64_t unit = next_.fetch_add(1, std::memory_order_relaxed);
    return unit < count_ ? unit : -1;
  }

 private:
  const int64_t count_;
  std::atomic<int64_t> next_{0};
};

// The caller's workspace, checked, or one from the cache.
class WorkspaceLease {
 public:
  static Result<WorkspaceLease> Take(const RunOptions& options, int64_t bytes);
  WorkspaceLease(WorkspaceLease&& other) noexcept;
  WorkspaceLease& operator=(WorkspaceLease&&) = delete;
  ~WorkspaceLease();

  std::byte* data() const { return data_; }

 private:
  WorkspaceLease() = default;
  std::byte* data_ = nullptr;
  AlignedBuffer owned_;
};

// The arrays of one call that all jobs have, at their addresses.
class Workspace {
 public:
  Workspace(const Launch& launch, std::byte* data) : launch_(launch), data_(data) {}

  std::byte* data() const { return data_; }
  std::byte* OfWorker(const Worker& worker) const {
    return data_ + launch_.layout.worker_begin + worker.index * launch_.layout.worker_bytes;
  }
  // The totals that a worker adds a unit's spans to.
  std::byte* TotalsOf(const Unit& unit, const Worker& worker) const {
    const int64_t part = launch_.schedule.splits_blocks() ? unit.block : worker.index;
    return data_ + launch_.layout.totals_begin + part * launch_.layout.totals_bytes;
  }
  Word* TransposedKeys(const PackedOperands& operands, const OperandLayout& layout,
                       const KeyChunk& chunk, int64_t key_head = 0) const {
    return ArrayAt<Word>(data_, layout.transposed_keys) + operands.PackedWords(chunk) +
           key_head * launch_.tiling.num_padded_keys() * operands.depth_words;
  }
  // Counts the spans that have been added to a block's totals; null where one worker has the whole
  // block.
  Counter* SpansDone(int64_t block) const;
  // Lets split blocks begin with their first spans. One worker, before all use turns.
  void StartTurns() const;

 private:
  const Launch& launch_;
  std::byte* const data_;
};

// Orders what several workers add to one sum: waits until the counter has come to `turn`, and lets
// the next one go on when it is destroyed. Without a counter nobody else adds.
class Turn {
 public:
  Turn(Counter* counter, int64_t turn);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Counter* const counter_;
  const uint32_t turn_;
};

// The first phase of the forward operators: packs the keys, and fills rows that nobody computes.
class PackPhase {
 public:
  explicit PackPhase(const Launch& launch)
      : launch_(launch),
        chunks_(launch.tiling.num_chunks()),
        sequences_(launch.call.problem.num_batches()) {}

  // Does a worker's part, calling fill(batch, sequence), and waits for the others.
  template <class Fill>
  void Work(const Worker& worker, const Workspace& workspace, const PackedOperands& operands,
            const OperandLayout& layout, Fill fill) {
    const OperandScratch scratch(workspace.OfWorker(worker), layout);
    if (worker.index == 0) workspace.StartTurns();
    for (int64_t i = chunks_.Next(); i >= 0; i = chunks_.Next()) {
      const KeyChunk chunk = launch_.tiling.Chunk(i);
      for (int64_t key_head = 0; key_head < operands.num_key_heads; ++key_head) {
        operands.PackKeys(chunk, key_head, scratch.key_rows,
                          workspace.TransposedKeys(operands, layout, chunk, key_head),
                          [](int64_t, int64_t) {});
      }
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) {
      fill(b, launch_.call.problem.sequence(b));
    }
    worker.barrier->ArriveAndWait();
  }

 private:
  const Launch& launch_;
  Dealer chunks_, sequences_;
};

// Calls visit(span, key_begin, key_end, last) for the spans of a unit whose block sees `most_keys`;
// the last argument says whether the span is the block's last.
template <class Visit>
void ForSpans(const Unit& unit, int64_t most_keys, Visit visit) {
  const int64_t num_spans = std::max<int64_t>(1, CeilDiv(most_keys, kKeysPerSpan));
  for (int64_t span = unit.span_begin; span < std::min(unit.span_end, num_spans); ++span) {
    const int64_t begin = span * kKeysPerSpan;
    visit(span, begin, std::min(begin + kKeysPerSpan, most_keys), span + 1 == num_spans);
  }
}

// Takes the workspace, makes the job from it, and calls job.Work(worker) on every worker.
template <class MakeJob>
Status RunJob(const Result<Launch>& launch, const RunOptions& options, MakeJob make_job) {
  if (!launch.ok()) return launch.status();
  Result<WorkspaceLease> lease = WorkspaceLease::Take(options, launch.value().layout.bytes);
  if (!lease.ok()) return lease.status();
  auto job = make_job(launch.value(), lease.value().data());
  WorkerPool::Instance().Run(launch.value().num_workers,
                             [&job](const Worker& worker) { job.Work(worker); });
  return Status();
}

Result<size_t> WorkspaceBytesOf(const Result<Launch>& launch);

// What tensors' shapes say about a call before the values of its lengths are known.
struct CallShape {
  DType dtype = DType::kFloat32;  // of q and k
  int64_t num_heads = 0;
  int64_t num_key_heads = 1;
  int64_t head_dim = 0;
  int64_t num_batches = 0;
  int64_t num_keys = 0;  // allocated, of all batches
};

// The most bytes of workspace that any call of this shape takes, whatever its lengths are; saturate
// at INT64_MAX.
int64_t SoftmaxLseWorkspaceLimit(const CallShape& shape, int64_t num_threads);
int64_t KLLossGradWorkspaceLimit(const CallShape& shape, int64_t num_threads);
int64_t AttentionL1NormWorkspaceLimit(const CallShape& shape, int64_t num_threads);

// What the three have in common. The operator reads `which` of the two pairs of operands.
int64_t WorkspaceLimit(const CallShape& shape, int64_t num_threads, const OperatorLayout& op,
                       OperandDims WorkspaceDims::* which);

// Fills rows [row_begin, row_end) of a sequence in an fp32 output with one value per row.
void FillRows(const RowView& view, int64_t batch, const Sequence& sequence, int64_t row_begin,
              int64_t row_end, float value);
// Zeroes rows [row_begin, row_end) of a sequence whose first row is `storage_begin`, in a dense
// output with `row_elements` elements per row.
void ZeroRows(const RowView& view, int64_t batch, int64_t storage_begin, int64_t row_begin,
              int64_t row_end, int64_t row_elements);

// Loads teacher values of one row, keys [key_begin, key_begin + count).
void LoadTeacher(const Launch& launch, const RowBlock& block, int64_t row, int64_t key_begin,
                 int64_t count, float* out);

}  // namespace kindling

#endif  // KINDLING_SRC_OPS_LAUNCH_H_
