// The process-wide defaults.
#include "kindling/runtime.h"

#include <gtest/gtest.h>

namespace kindling::test {
namespace {

TEST(Runtime, ThreadsDefaultToTheProcessorsThereAre) {
  EXPECT_GE(GetNumThreads(), 1);
  EXPECT_LE(GetNumThreads(), kMaxThreads);
}

TEST(Runtime, SetNumThreadsIsRead) {
  const int64_t before = GetNumThreads();
  for (const int64_t num_threads : {int64_t{1}, int64_t{7}, kMaxThreads}) {
    EXPECT_TRUE(SetNumThreads(num_threads).ok());
    EXPECT_EQ(GetNumThreads(), num_threads);
  }
  EXPECT_TRUE(SetNumThreads(before).ok());
}

TEST(Runtime, SetNumThreadsRefusesWhatIsOutOfRange) {
  const int64_t before = GetNumThreads();
  for (const int64_t num_threads : {int64_t{0}, int64_t{-1}, kMaxThreads + 1, int64_t{1} << 40}) {
    const Status status = SetNumThreads(num_threads);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with("num_threads: expected in [1, 1024], got "))
        << status.message();
    EXPECT_EQ(GetNumThreads(), before);
  }
}

}  // namespace
}  // namespace kindling::test
