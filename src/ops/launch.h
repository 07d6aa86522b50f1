// What the three operators do alike: choose tiles and workers, carve the workspace, run, deal
// units.
#ifndef KINDLING_SRC_OPS_LAUNCH_H_
#define KINDLING_SRC_OPS_LAUNCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "kindling/runtime.h"
#include "kindling/status.h"
#include "kindling/tensor.h"
#include "ops/worker_pool.h"
#include "plan/tiling.h"
#include "plan/workspace.h"
#include "problem/operator_call.h"

namespace kindling {

// (row, head) pairs of a block: 256 x 128 fp32 queries are 128 KiB, so that a block's queries, its
// scores against one chunk of keys and its gradient sums stay in L2 together. A block has at most
// this many rows, and more pairs only where one row has more heads.
inline constexpr int64_t kPairsPerBlock = 256;

// A checked call, cut into tiles for one instruction set, with the layout of its workspace.
struct Launch {
  Launch(OperatorCall checked, const KernelTable& kernel_table);

  // Elements from the start of `view` to row `row` of `block`, counted from the block's first.
  static int64_t RowOffset(const RowView& view, const RowBlock& block, int64_t row) {
    return view.RowOffset(block.batch, block.sequence.storage_row_begin, block.row_begin + row);
  }
  // Keys that row `row` of `block` sees.
  int64_t VisibleKeys(const RowBlock& block, int64_t row) const {
    return call.problem.NumVisibleKeys(block.sequence, block.row_begin + row);
  }

  OperatorCall call;
  const KernelTable& kernels;
  int64_t rows_per_block = 1;
  Tiling tiling;
  WorkspaceLayout layout;
  int64_t num_workers = 1;
};

using LayOutFunction = WorkspaceLayout (*)(const WorkspaceDims& dims);

// Checks the record and num_threads and prepares the launch.
Result<Launch> PrepareLaunch(Result<OperatorCall> checked, const ConstTensor& metadata,
                             int64_t num_threads, LayOutFunction lay_out);

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

// The typed address of an array in the workspace.
template <class T>
T* ArrayAt(std::byte* base, int64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

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

// Fills rows [row_begin, row_end) of a sequence in an fp32 output with one value per row.
void FillRows(const RowView& view, int64_t batch, const Sequence& sequence, int64_t row_begin,
              int64_t row_end, float value);
// Zeroes rows [row_begin, row_end) of a sequence whose first row is `storage_begin`, in a dense
// output with `row_elements` elements per row.
void ZeroRows(const RowView& view, int64_t batch, int64_t storage_begin, int64_t row_begin,
              int64_t row_end, int64_t row_elements);

// Loads one value per head of every row of a block, as fp32 [rows][heads].
void LoadPerHead(const Launch& launch, const RowBlock& block, const RowView& view, float* out);

// Loads teacher values of one row, keys [key_begin, key_begin + count).
void LoadTeacher(const Launch& launch, const RowBlock& block, int64_t row, int64_t key_begin,
                 int64_t count, float* out);

// Packs the keys of a chunk, one key head, as columns of B. `key_rows` receives them as fp32 rows
// of `padded_width`. Returns whether all are finite.
bool PackKeyChunk(const Launch& launch, const KeyChunk& chunk, int64_t key_head, float* key_rows,
                  int64_t padded_width, float* transposed);

// Loads the queries of a block as fp32 rows of `padded_width`, ordered by (key head, row, head
// within the key head's group). Returns whether all are finite.
bool LoadQueries(const Launch& launch, const RowBlock& block, float* queries, int64_t padded_width);

// scores[pair][key] of `num_pairs` loaded queries and `num_keys` keys of one packed chunk,
// kScoreStride apart.
void MultiplyScores(const Launch& launch, const float* queries, int64_t padded_width,
                    int64_t num_pairs, const float* transposed_keys, int64_t num_keys,
                    float* scores);

}  // namespace kindling

#endif  // KINDLING_SRC_OPS_LAUNCH_H_
