#include "kindling/runtime.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/message.h"

namespace kindling {
namespace {

std::atomic<int64_t> g_num_threads{0};  // 0: not set

}  // namespace

Status SetNumThreads(int64_t num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return InvalidArgument("num_threads: expected in [1, ", kMaxThreads, "], got ", num_threads);
  }
  g_num_threads.store(num_threads, std::memory_order_relaxed);
  return Status();
}

int64_t GetNumThreads() {
  const int64_t set = g_num_threads.load(std::memory_order_relaxed);
  if (set > 0) return set;
  static const int64_t found = [] {
    cpu_set_t allowed;
    const int64_t count = sched_getaffinity(0, sizeof(allowed), &allowed) == 0
                              ? CPU_COUNT(&allowed)
                              : int64_t{std::thread::hardware_concurrency()};
    return std::clamp<int64_t>(count, 1, kMaxThreads);
  }();
  return found;
}

}  // namespace kindling
