// The pool of workers, its barrier, its waiting, and the buffers that it keeps.
#include "ops/worker_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "support/build_kind.h"

namespace kindling::test {
namespace {

constexpr int kRounds = kSanitized ? 50 : 500;

TEST(WorkerPool, RunsEveryWorkerOnce) {
  for (const int64_t num_workers : {1, 2, 3, 7, 32}) {
    std::vector<std::atomic<int>> calls(num_workers);
    WorkerPool::Instance().Run(num_workers, [&](const Worker& worker) {
      EXPECT_EQ(worker.num_workers, num_workers);
      ASSERT_GE(worker.index, 0);
      ASSERT_LT(worker.index, num_workers);
      ++calls[worker.index];
    });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
}

TEST(WorkerPool, TheCallerIsWorkerZero) {
  const std::thread::id caller = std::this_thread::get_id();
  WorkerPool::Instance().Run(3, [&](const Worker& worker) {
    EXPECT_EQ(std::this_thread::get_id() == caller, worker.index == 0);
  });
}

TEST(WorkerPool, WhatWorkersWroteIsSeenAfterwards) {
  std::vector<int64_t> written(8);
  for (int64_t round = 1; round <= kRounds; ++round) {
    WorkerPool::Instance().Run(
        8, [&](const Worker& worker) { written[worker.index] += round * (worker.index + 1); });
    for (int64_t i = 0; i < 8; ++i) ASSERT_EQ(written[i], round * (round + 1) / 2 * (i + 1));
  }
}

TEST(WorkerPool, KeepsItsThreads) {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  for (int round = 0; round < kRounds; ++round) {
    WorkerPool::Instance().Run(4, [&](const Worker&) {
      const std::lock_guard<std::mutex> lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
  }
  // As many as were ever asked for at once in this program, not four more in each round.
  EXPECT_LE(threads.size(), 32u);
}

TEST(WorkerPool, MayBeUsedFromInside) {
  std::atomic<int> calls{0};
  WorkerPool::Instance().Run(3, [&](const Worker&) {
    WorkerPool::Instance().Run(3, [&](const Worker& inner) {
      calls += inner.num_workers == 3;
      WorkerPool::Instance().Run(2, [&](const Worker&) { ++calls; });
    });
  });
  EXPECT_EQ(calls, 3 * 3 + 3 * 3 * 2);
}

TEST(WorkerPool, ServesSeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<int64_t> sum{0};
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < kRounds / 10; ++round) {
        WorkerPool::Instance().Run(5, [&](const Worker& worker) {
          worker.barrier->ArriveAndWait();
          sum += worker.index;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, int64_t{6} * (kRounds / 10) * (0 + 1 + 2 + 3 + 4));
}

TEST(Barrier, NobodyIsAheadOfAPhase) {
  constexpr int64_t kWorkers = 5;
  std::atomic<int64_t> arrived{0};
  WorkerPool::Instance().Run(kWorkers, [&](const Worker& worker) {
    for (int64_t phase = 1; phase <= kRounds; ++phase) {
      ++arrived;
      worker.barrier->ArriveAndWait();
      // All of this phase have come, and at most all of the next.
      const int64_t seen = arrived;
      EXPECT_GE(seen, phase * kWorkers);
      EXPECT_LE(seen, (phase + 1) * kWorkers);
      worker.barrier->ArriveAndWait();
    }
  });
  EXPECT_EQ(arrived, kRounds * kWorkers);
}

TEST(Barrier, OrdersPlainWrites) {
  std::vector<int> values(4, 0);
  WorkerPool::Instance().Run(4, [&](const Worker& worker) {
    for (int phase = 1; phase <= kRounds; ++phase) {
      values[worker.index] = phase;
      worker.barrier->ArriveAndWait();
      for (const int value : values) EXPECT_EQ(value, phase);
      worker.barrier->ArriveAndWait();
    }
  });
}

TEST(Barrier, OfOneWorkerDoesNotWait) {
  Barrier barrier(1);
  for (int i = 0; i < 3; ++i) barrier.ArriveAndWait();
}

TEST(WaitUntilReached, ReturnsAtOnceWhereItIs) {
  const Counter counter(7);
  WaitUntilReached(counter, 7);
  WaitUntilReached(counter, 6);
  WaitUntilReached(counter, 0);
}

TEST(WaitUntilReached, CountsAcrossTheWrapAround) {
  // 3 comes after 0xfffffffe.
  const Counter counter(3);
  WaitUntilReached(counter, 0xfffffffeu);
  WaitUntilReached(counter, 0u);
}

enum class Waiter { kSpins, kSleeps };

// Waits for `target` on another thread while this one counts up to it from `first`.
void ExpectWakesAt(uint32_t first, uint32_t target, Waiter kind) {
  Counter counter(first);
  std::atomic<bool> woken{false};
  std::thread waiter([&] {
    WaitUntilReached(counter, target);
    woken = true;
    // Wakes when the target is reached, not before.
    EXPECT_GE(static_cast<int32_t>(counter.load() - target), 0);
  });
  // Longer than the waiter spins, so that it must be woken from its sleep.
  if (kind == Waiter::kSleeps) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(woken);
  for (uint32_t value = first + 1; value != target + 1; ++value) {
    counter.store(value, std::memory_order_release);
    counter.notify_all();
  }
  waiter.join();
  EXPECT_TRUE(woken);
}

TEST(WaitUntilReached, WakesAtTheTarget) {
  ExpectWakesAt(0, 1, Waiter::kSleeps);
  ExpectWakesAt(10, 15, Waiter::kSleeps);
  for (int round = 0; round < kRounds / 10; ++round) ExpectWakesAt(0, 3, Waiter::kSpins);
}

TEST(WaitUntilReached, WakesAcrossTheWrapAround) { ExpectWakesAt(0xfffffffdu, 2, Waiter::kSleeps); }

// A pool of one's own has no threads until they are asked for.
TEST(WorkerPoolBuffers, AreAlignedAndLargeEnough) {
  WorkerPool pool;
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{100'000}}) {
    const AlignedBuffer buffer = pool.TakeBuffer(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_GE(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u);
  }
}

TEST(WorkerPoolBuffers, AreReused) {
  WorkerPool pool;
  AlignedBuffer buffer = pool.TakeBuffer(4096);
  const std::byte* address = buffer.data();
  pool.GiveBack(std::move(buffer));
  EXPECT_EQ(pool.TakeBuffer(1000).data(), address);
  // That one was not given back.
  EXPECT_NE(pool.TakeBuffer(1'000'000).data(), nullptr);
}

TEST(WorkerPoolBuffers, AreNeverTooSmall) {
  WorkerPool pool;
  pool.GiveBack(pool.TakeBuffer(128));
  EXPECT_GE(pool.TakeBuffer(4096).bytes(), 4096u);
}

TEST(WorkerPoolBuffers, TheLargestAreKept) {
  WorkerPool pool;
  std::vector<AlignedBuffer> taken;
  for (const size_t bytes : {64, 1024, 512, 2048}) taken.push_back(pool.TakeBuffer(bytes));
  for (AlignedBuffer& buffer : taken) pool.GiveBack(std::move(buffer));
  std::multiset<size_t> kept = {pool.TakeBuffer(1).bytes(), pool.TakeBuffer(1).bytes()};
  EXPECT_EQ(kept, (std::multiset<size_t>{1024, 2048}));
  EXPECT_EQ(pool.TakeBuffer(1).bytes(), 64u) << "no more than two are kept";
}

TEST(WorkerPoolBuffers, ImpossibleSizesGiveNone) {
  WorkerPool pool;
  EXPECT_EQ(AlignedBuffer::Allocate(0).data(), nullptr);
  EXPECT_EQ(AlignedBuffer::Allocate(SIZE_MAX).data(), nullptr);
  if (!kSanitized) {  // whose allocators end the program
    EXPECT_EQ(pool.TakeBuffer(SIZE_MAX / 2).data(), nullptr);
  }
}

}  // namespace
}  // namespace kindling::test
