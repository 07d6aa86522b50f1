#include "ops/worker_pool.h"

#include <pthread.h>

#include <algorithm>
#include <cfenv>
#include <exception>
#include <thread>
#include <utility>

namespace kindling {
namespace {

// About 10 us on current processors: longer than workers of one call drift apart as a rule, too
// short to matter when there are more threads than processors.
constexpr int kSpins = 4000;

// Buffers kept for later calls; two serve a forward and a backward pass that alternate.
constexpr size_t kKeptBuffers = 2;

// Null before the first use and in a fresh child process. Pools are never destroyed: their threads
// sleep until the process ends.
std::atomic<WorkerPool*> g_pool{nullptr};

}  // namespace

void WaitUntilReached(const Counter& counter, uint32_t target) {
  const auto reached = [target](uint32_t value) {
    return static_cast<int32_t>(value - target) >= 0;
  };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (reached(counter.load(std::memory_order_acquire))) return;
  }
  uint32_t seen = counter.load(std::memory_order_acquire);
  while (!reached(seen)) {
    counter.wait(seen, std::memory_order_acquire);
    seen = counter.load(std::memory_order_acquire);
  }
}

void Barrier::ArriveAndWait() {
  if (num_workers_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_workers_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else {
    WaitUntilReached(phase_, phase + 1);
  }
}

// One thread. `started` and `finished` count the calls that it was given and has done; the fields
// of a call are written before `started` goes up and may be reused after `finished` has followed.
struct WorkerPool::Helper {
  Counter started{0};
  Counter finished{0};
  ErasedBody body = nullptr;
  void* context = nullptr;
  Worker worker;
  std::fenv_t environment;
};

WorkerPool::WorkerPool() { buffers_.reserve(kKeptBuffers); }

WorkerPool& WorkerPool::Instance() {
  if (WorkerPool* pool = g_pool.load(std::memory_order_acquire)) return *pool;
  // The threads of a parent, and locks that they held, do not exist in a forked child.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { g_pool.store(nullptr); });
  static_cast<void>(registered);
  auto* fresh = new WorkerPool();
  WorkerPool* current = nullptr;
  if (g_pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) return *fresh;
  delete fresh;
  return *current;
}

void WorkerPool::HelperLoop(Helper* helper) {
  for (uint32_t call = 1;; ++call) {
    WaitUntilReached(helper->started, call);
    std::fesetenv(&helper->environment);
    helper->body(helper->context, helper->worker);
    helper->finished.store(call, std::memory_order_release);
    helper->finished.notify_all();
  }
}

std::vector<WorkerPool::Helper*> WorkerPool::TakeHelpers(int64_t count) {
  std::vector<Helper*> helpers;
  helpers.reserve(count);
  std::lock_guard<std::mutex> lock(mutex_);
  while (static_cast<int64_t>(helpers.size()) < count) {
    if (!idle_.empty()) {
      helpers.push_back(idle_.back());
      idle_.pop_back();
      continue;
    }
    try {
      idle_.reserve(num_helpers_ + 1);  // so that giving back cannot fail
      auto helper = std::make_unique<Helper>();
      std::thread(HelperLoop, helper.get()).detach();
      helpers.push_back(helper.release());
      ++num_helpers_;
    } catch (const std::exception&) {
      break;  // no thread or no memory: fewer workers compute the same results
    }
  }
  return helpers;
}

void WorkerPool::GiveBack(const std::vector<Helper*>& helpers) {
  std::lock_guard<std::mutex> lock(mutex_);
  idle_.insert(idle_.end(), helpers.begin(), helpers.end());
}

void WorkerPool::RunErased(int64_t num_workers, ErasedBody body, void* context) {
  std::vector<Helper*> helpers;
  if (num_workers > 1) helpers = TakeHelpers(num_workers - 1);
  Worker worker;
  worker.num_workers = 1 + static_cast<int64_t>(helpers.size());
  Barrier barrier(worker.num_workers);
  worker.barrier = &barrier;
  std::fenv_t environment;
  if (!helpers.empty()) std::fegetenv(&environment);
  for (Helper* helper : helpers) {
    helper->environment = environment;
    helper->body = body;
    helper->context = context;
    helper->worker = worker;
    helper->worker.index = ++worker.index;
    helper->started.fetch_add(1, std::memory_order_release);
    helper->started.notify_one();
  }
  worker.index = 0;
  body(context, worker);
  for (Helper* helper : helpers) {
    WaitUntilReached(helper->finished, helper->started.load(std::memory_order_relaxed));
  }
  if (!helpers.empty()) GiveBack(helpers);
}

AlignedBuffer WorkerPool::TakeBuffer(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& kept : buffers_) {
      if (kept.bytes() < bytes) continue;
      AlignedBuffer buffer = std::move(kept);
      std::swap(kept, buffers_.back());
      buffers_.pop_back();
      return buffer;
    }
  }
  return AlignedBuffer::Allocate(bytes);
}

void WorkerPool::GiveBack(AlignedBuffer buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (buffers_.size() < kKeptBuffers) {
    buffers_.push_back(std::move(buffer));
    return;
  }
  auto smallest = std::min_element(
      buffers_.begin(), buffers_.end(),
      [](const AlignedBuffer& a, const AlignedBuffer& b) { return a.bytes() < b.bytes(); });
  if (smallest->bytes() < buffer.bytes()) std::swap(*smallest, buffer);
}

}  // namespace kindling
