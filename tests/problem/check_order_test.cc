// Faults made one at a time and two at a time: code, argument and order of the checks of the
// specification's section 6.1. The checks live in src/problem/lengths.cc; the one between them that
// belongs to the output tensor's memory (29) is tested in tests/plan.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "problem/faults.h"
#include "problem/lengths.h"
#include "problem/lengths_case.h"

namespace kindling {
namespace {

using test::Fault;
using test::MetadataCall;

constexpr int kDataPointerCheck = 29;

// The checks of src/problem in the order in which the metadata operator runs them.
Status CheckAll(const MetadataCall& call) {
  const ConstTensor metadata = call.metadata;
  const Result<Lengths> lengths = DescribeMetadataArgs(call.args, &metadata);
  return lengths.ok() ? CheckLengthValues(lengths.value()).status() : lengths.status();
}

std::vector<Fault> Faults() {
  std::vector<Fault> faults = test::AllFaults();
  std::erase_if(faults, [](const Fault& fault) { return fault.number == kDataPointerCheck; });
  return faults;
}

TEST(Checks, PassWhereNothingIsWrong) {
  int32_t words[192];
  const Status status = CheckAll(test::ValidCall(words));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(Checks, FindEveryFault) {
  int32_t words[192];
  std::set<int> numbers;
  for (const Fault& fault : Faults()) {
    MetadataCall call = test::ValidCall(words);
    fault.apply(call);
    const Status status = CheckAll(call);
    EXPECT_EQ(status.code(), fault.code) << fault.Name() << ": " << status.message();
    EXPECT_EQ(test::ArgumentOf(status), fault.argument) << fault.Name() << ": " << status.message();
    EXPECT_TRUE(test::HasMessageForm(status)) << fault.Name() << ": " << status.message();
    numbers.insert(fault.number);
  }
  for (int number = 3; number <= 33; ++number) {
    EXPECT_EQ(numbers.count(number), number == kDataPointerCheck ? 0u : 1u) << number;
  }
}

TEST(Checks, TheEarlierOfTwoFaultsDecides) {
  int32_t words[192];
  const std::vector<Fault> faults = Faults();
  std::map<int, int> num_pairs;  // by check
  for (const Fault& first : faults) {
    for (const Fault& second : faults) {
      if (!first.Before(second) || !first.GoesWith(second)) continue;
      MetadataCall call = test::ValidCall(words);
      first.apply(call);
      second.apply(call);
      const Status status = CheckAll(call);
      ASSERT_EQ(status.code(), first.code)
          << first.Name() << " and " << second.Name() << ": " << status.message();
      ASSERT_EQ(test::ArgumentOf(status), first.argument)
          << first.Name() << " and " << second.Name() << ": " << status.message();
      ++num_pairs[first.number];
      ++num_pairs[second.number];
    }
  }
  // Faults that write the same thing exclude each other, but nothing excludes most of the others.
  for (const auto& [number, count] : num_pairs) EXPECT_GE(count, 30) << number;
  EXPECT_EQ(num_pairs.size(), 30u);
}

// A problem checks the same, less what belongs to heads, width, cores and the output.
TEST(Checks, ProblemFindsTheSame) {
  const std::set<int> not_its_own = {3, 4, 5, 15, 16, 20, 22};
  int32_t words[192];
  for (const Fault& fault : Faults()) {
    MetadataCall call = test::ValidCall(words);
    fault.apply(call);
    const Status status = Problem::Create(call.args).status();
    if (not_its_own.contains(fault.number)) {
      EXPECT_TRUE(status.ok()) << fault.Name() << ": " << status.message();
      continue;
    }
    EXPECT_EQ(status.code(), fault.code) << fault.Name() << ": " << status.message();
    EXPECT_EQ(test::ArgumentOf(status), fault.argument) << fault.Name() << ": " << status.message();
  }
}

// The operators check lengths without the attributes that only the metadata operator has.
TEST(Checks, AttributesAlone) {
  int32_t words[192];
  for (const Fault& fault : Faults()) {
    if (fault.number < 9 || fault.number > 14) continue;
    MetadataCall call = test::ValidCall(words);
    fault.apply(call);
    const Status status = CheckSequenceAttributes(call.args).status();
    EXPECT_EQ(status.code(), fault.code) << fault.Name();
    EXPECT_EQ(test::ArgumentOf(status), fault.argument) << fault.Name() << ": " << status.message();
  }
}

}  // namespace
}  // namespace kindling
