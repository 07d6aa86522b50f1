// Operators called by several threads, from inside each other, and on both sides of a fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "kindling/operators.h"
#include "ops/worker_pool.h"
#include "support/build_kind.h"
#include "support/compare.h"
#include "support/problem.h"

namespace kindling::test {
namespace {

Case CaseOf(int64_t variant) {
  Case spec;
  spec.dtype = variant % 2 == 0 ? DType::kFloat32 : DType::kBFloat16;
  spec.mask_mode = variant % 3 == 0 ? MaskMode::kNone : MaskMode::kCausal;
  spec.num_heads = 4 + variant;
  spec.head_dim = 8;
  spec.num_rows = {130, 7 + variant};
  spec.num_keys = {260, 20};
  return spec;
}

// One caller's problem and what it must get.
struct Caller {
  explicit Caller(int64_t variant)
      : indexer(CaseOf(variant)), teacher(CaseOf(variant), Teacher::Lse::kAbsent) {}

  // Runs all three operators; no test macro, so that it may run where a failure cannot be recorded.
  bool Matches(int64_t num_threads) const {
    const RunOptions options{.num_threads = num_threads};
    LseOutputs got_lse(indexer, {});
    GradOutputs got_grad(indexer, {});
    OwnedTensor got_p = TeacherOutput(teacher);
    return SoftmaxLse(MakeArgs(indexer, got_lse), options).ok() &&
           KLLossGrad(MakeArgs(indexer, got_grad), options).ok() &&
           AttentionL1Norm(MakeArgs(teacher, got_p), options).ok() &&
           SameBits(got_lse, lse, indexer.spec) && SameBits(got_grad, grad, indexer.spec) &&
           SameBits("p", got_p, p, teacher.spec);
  }

  Indexer indexer;
  Teacher teacher;
  LseOutputs lse = RunSoftmaxLse(indexer, {}, {.num_threads = 1});
  GradOutputs grad = RunKLLossGrad(indexer, {}, {.num_threads = 1});
  OwnedTensor p = RunAttentionL1Norm(teacher, {.num_threads = 1});
};

constexpr int kRounds = kSanitized ? 2 : 10;

TEST(Concurrency, SeveralThreadsMayCall) {
  std::vector<Caller> callers;
  for (int64_t variant = 0; variant < 5; ++variant) callers.emplace_back(variant);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        num_wrong += !callers[i].Matches(1 + static_cast<int64_t>(i + round) % 4);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(Concurrency, ThreadsMayShareInputs) {
  const Caller caller(1);
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) num_wrong += !caller.Matches(3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(Concurrency, CallsMayBeNested) {
  const Caller caller(2);
  std::atomic<int> num_right{0};
  WorkerPool::Instance().Run(3, [&](const Worker&) { num_right += caller.Matches(2); });
  EXPECT_EQ(num_right, 3);
}

TEST(Concurrency, MoreThreadsThanProcessorsOrBlocks) {
  const Caller caller(0);
  EXPECT_TRUE(caller.Matches(64));
  EXPECT_TRUE(caller.Matches(kMaxThreads));
}

// Forks and returns whether the child found `check` true. A child that hangs is ended by an alarm.
template <class Check>
bool TrueInChild(Check check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

// The threads of the parent do not exist in the child.
TEST(Fork, AChildComputesWithThreadsOfItsOwn) {
  if (kUnderTsan) GTEST_SKIP() << "ThreadSanitizer does not follow threads into a child";
  const Caller caller(1);
  ASSERT_TRUE(caller.Matches(4));  // the pool has threads and kept buffers now
  EXPECT_TRUE(TrueInChild([&] { return caller.Matches(2); }));
  EXPECT_TRUE(caller.Matches(4)) << "the parent goes on as before";
}

int64_t NumThreadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// A child has no threads but its own, so that those of a call can be counted there.
TEST(Fork, ACallTakesTheThreadsItMay) {
  if (kUnderTsan) GTEST_SKIP() << "ThreadSanitizer does not follow threads into a child";
  const Caller caller(1);
  EXPECT_TRUE(TrueInChild([&] {
    return caller.Matches(1) && NumThreadsOfThisProcess() == 1 &&  //
           caller.Matches(3) && NumThreadsOfThisProcess() == 3 &&  // the caller is one of them
           caller.Matches(2) && NumThreadsOfThisProcess() == 3;
  }));
}

TEST(Fork, AGrandchildComputesToo) {
  if (kUnderTsan) GTEST_SKIP() << "ThreadSanitizer does not follow threads into a child";
  const Caller caller(1);
  ASSERT_TRUE(caller.Matches(2));
  EXPECT_TRUE(TrueInChild([&] {
    return caller.Matches(2) && TrueInChild([&] { return caller.Matches(3); }) && caller.Matches(2);
  }));
}

// Other threads are inside the library, and may hold its locks, when the fork happens.
TEST(Fork, WhileOthersCall) {
  if (kSanitized) {
    // GCC 12's AddressSanitizer takes no locks at a fork: any program may hang in malloc then.
    GTEST_SKIP() << "the sanitizer's own allocator does not survive this";
  }
  const Caller caller(1);
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) caller.Matches(3);
  });
  int num_right = 0;
  constexpr int kForks = 10;
  for (int i = 0; i < kForks; ++i) num_right += TrueInChild([&] { return caller.Matches(2); });
  stop = true;
  other.join();
  EXPECT_EQ(num_right, kForks);
}

}  // namespace
}  // namespace kindling::test
