// The threads of the library, and the memory that it keeps between calls.
#ifndef KINDLING_SRC_OPS_WORKER_POOL_H_
#define KINDLING_SRC_OPS_WORKER_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "base/aligned_buffer.h"

namespace kindling {

// A count that only grows; it may wrap around.
using Counter = std::atomic<uint32_t>;

// Blocks until `counter` has reached `target`: spins for some microseconds, then sleeps. Whoever
// changes the counter notifies it.
void WaitUntilReached(const Counter& counter, uint32_t target);

// Lets the workers of one call wait for each other.
class Barrier {
 public:
  explicit Barrier(int64_t num_workers) : num_workers_(static_cast<uint32_t>(num_workers)) {}
  void ArriveAndWait();

 private:
  const uint32_t num_workers_;
  Counter arrived_{0};
  Counter phase_{0};
};

// What one worker of a call knows: which one it is, of how many.
struct Worker {
  int64_t index = 0;
  int64_t num_workers = 1;
  Barrier* barrier = nullptr;
};

// A pool that grows to what calls ask for. A call takes idle threads for its whole length, the
// caller being worker 0, so concurrent callers never wait for each other and a call may be made
// from inside another. Workers compute in
// the caller's floating-point environment. Safe with fork: the child starts with an empty pool.
class WorkerPool {
 public:
  WorkerPool();
  static WorkerPool& Instance();

  // Calls body(worker) on `num_workers` workers, or on fewer if the host gives no more threads, and
  // returns when all are done. `body` must not throw.
  template <class Body>
  void Run(int64_t num_workers, Body&& body) {
    RunErased(
        num_workers,
        [](void* context, const Worker& worker) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(worker);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // A buffer of at least `bytes`, a kept one where it is large enough; data() is null if the host
  // has no memory.
  AlignedBuffer TakeBuffer(size_t bytes);
  // Keeps a buffer for a later call.
  void GiveBack(AlignedBuffer buffer);

 private:
  using ErasedBody = void (*)(void* context, const Worker& worker);
  struct Helper;

  void RunErased(int64_t num_workers, ErasedBody body, void* context);
  std::vector<Helper*> TakeHelpers(int64_t count);
  void GiveBack(const std::vector<Helper*>& helpers);
  static void HelperLoop(Helper* helper);

  std::mutex mutex_;
  size_t num_helpers_ = 0;              // guarded by mutex_; all there are
  std::vector<Helper*> idle_;           // guarded by mutex_
  std::vector<AlignedBuffer> buffers_;  // guarded by mutex_
};

}  // namespace kindling

#endif  // KINDLING_SRC_OPS_WORKER_POOL_H_
