// Which records are taken for a problem: exactly those that the specification's section 6.1 calls
// valid. Extensions of balanced plans are tested in plan_test.cc.
#include "plan/record.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kindling/metadata.h"
#include "plan/split.h"
#include "problem/lengths_case.h"
#include "support/random.h"

namespace kindling {
namespace {

constexpr int64_t kInt32Max = 2147483647;
constexpr int64_t kInt32Min = -2147483648;

using Words = std::array<int32_t, kMetadataWords>;

Words WordsOf(const Metadata& record) { return std::bit_cast<Words>(record); }
Metadata RecordOf(const Words& words) { return std::bit_cast<Metadata>(words); }

Problem ProblemOfRows(int64_t num_rows) {
  test::LengthsCase lengths;
  if (num_rows == 0) {
    lengths.cu_q = lengths.cu_k = {0, 0};
  } else {
    lengths.layout_q = lengths.layout_k = "BSND";
    lengths.batch_size = 1;
    lengths.max_seqlen_q = num_rows;
    lengths.max_seqlen_k = 9;
  }
  return Problem::Create(lengths.Args()).value();
}

// The sentence of section 6.1, with the table's formulas of section 6. Words are widened first.
bool IsValidForRows(const Words& words, int64_t num_rows) {
  for (int word = 6; word < kMetadataWords; ++word) {
    if (words[word] != 0) return false;
  }
  const int64_t w1 = words[1], w2 = words[2], w3 = words[3], w4 = words[4];
  if (words[0] != num_rows) return false;
  if (num_rows == 0) return w1 == 0 && w2 == 0 && w3 == 0 && w4 == 0;
  if (w1 < 1 || (num_rows + w3) % w1 != 0) return false;
  const int64_t num_cores = (num_rows + w3) / w1;
  if (num_cores < 1) return false;
  int64_t former = num_rows / num_cores;
  if (former * num_cores < num_rows) ++former;
  return w1 == former && w2 == former - 1 && w3 == former * num_cores - num_rows &&
         w4 == (num_rows < num_cores ? num_rows : num_cores);
}

TEST(ValidateMetadata, TakesRecordsForAnyCoreCount) {
  for (const int64_t num_rows : {0, 1, 2, 16, 25, 511, 2048}) {
    const Problem problem = ProblemOfRows(num_rows);
    for (int64_t num_cores = 1; num_cores <= 3000; num_cores += 1 + num_cores / 50) {
      const Status status = ValidateMetadata(SplitRows(num_rows, num_cores, 9), problem);
      ASSERT_TRUE(status.ok()) << "T " << num_rows << " C " << num_cores << ": "
                               << status.message();
    }
  }
}

TEST(ValidateMetadata, IgnoresTheLongestKeyLength) {
  const Problem problem = ProblemOfRows(10);
  for (const int64_t word : {int64_t{0}, int64_t{9}, kInt32Max, int64_t{-1}, kInt32Min}) {
    Metadata record = SplitRows(10, 4, 9);
    record.max_seq_k = static_cast<int32_t>(word);
    EXPECT_TRUE(ValidateMetadata(record, problem).ok()) << word;
  }
}

// All words 1..4 near the valid ones.
TEST(ValidateMetadata, JudgesAllSmallRecordsByTheDefinition) {
  int64_t num_valid = 0;
  for (int64_t num_rows = 0; num_rows <= 7; ++num_rows) {
    const Problem problem = ProblemOfRows(num_rows);
    Words words{};
    for (int32_t w0 : {num_rows, num_rows + 1, int64_t{0}, -num_rows}) {
      words[0] = w0;
      for (words[1] = -1; words[1] <= 8; ++words[1]) {
        for (words[2] = -1; words[2] <= 8; ++words[2]) {
          for (words[3] = -9; words[3] <= 9; ++words[3]) {
            for (words[4] = -1; words[4] <= 8; ++words[4]) {
              const bool expected = IsValidForRows(words, num_rows);
              const Status status = ValidateMetadata(RecordOf(words), problem);
              ASSERT_EQ(status.ok(), expected)
                  << "T " << num_rows << " words " << words[0] << " " << words[1] << " " << words[2]
                  << " " << words[3] << " " << words[4] << ": " << status.message();
              if (expected) ++num_valid;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_valid, 80);
}

TEST(ValidateMetadata, NamesTheFirstWrongWord) {
  const Problem problem = ProblemOfRows(25);
  const Words good = WordsOf(SplitRows(25, 20, 9));  // 25, 2, 1, 15, 20
  const struct {
    int word;
    int32_t value;
    std::string named;
  } cases[] = {
      // 3, 17 is that of 21 cores but for the cores used
      {0, 24, "metadata[0]"},  {1, 0, "metadata[1]"},   {1, -2, "metadata[1]"},
      {1, 3, "metadata[3]"},   {2, 0, "metadata[2]"},   {2, 2, "metadata[2]"},
      {3, 14, "metadata[3]"},  {3, -25, "metadata[3]"}, {3, 17, "metadata[4]"},
      {4, 19, "metadata[4]"},  {4, 21, "metadata[4]"},  {11, 1, "metadata[11]"},
      {63, 1, "metadata[63]"},
  };
  for (const auto& [word, value, named] : cases) {
    Words words = good;
    words[word] = value;
    const Status status = ValidateMetadata(RecordOf(words), problem);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << word << " = " << value;
    EXPECT_TRUE(status.message().starts_with(named + ":")) << status.message();
    EXPECT_TRUE(test::HasMessageForm(status)) << status.message();
  }
}

// One word of a good record becomes another number: every word in turn, near and far.
TEST(ValidateMetadata, JudgesMutationsByTheDefinition) {
  test::Random random(test::RunningTest());
  const auto size = [&] {
    switch (random.Below(3)) {
      case 0:
        return 1 + random.Below(kInt32Max);
      case 1:
        return 1 + random.Below(300);
      default:
        return kInt32Max - random.Below(4);
    }
  };
  for (int repeat = 0; repeat < 150; ++repeat) {
    const int64_t num_rows = size();
    const int64_t num_cores = size();
    const Problem problem = ProblemOfRows(num_rows);
    const Words good = WordsOf(SplitRows(num_rows, num_cores, 9));
    ASSERT_TRUE(IsValidForRows(good, num_rows));
    ASSERT_TRUE(ValidateMetadata(RecordOf(good), problem).ok());
    for (int word = 0; word < kMetadataWords; ++word) {
      const auto at = static_cast<int64_t>(good[word]);
      for (const int64_t value :
           {at - 1, at + 1, at - 2, at + 2, -at, int64_t{-1}, int64_t{0}, int64_t{1}, kInt32Min,
            kInt32Max, static_cast<int64_t>(static_cast<int32_t>(random.Bits()))}) {
        if (value < kInt32Min || value > kInt32Max) continue;
        Words words = good;
        words[word] = static_cast<int32_t>(value);
        ASSERT_EQ(ValidateMetadata(RecordOf(words), problem).ok(), IsValidForRows(words, num_rows))
            << "T " << num_rows << " C " << num_cores << " word " << word << " = " << value;
      }
    }
  }
}

// Sums and quotients of hostile words must not wrap around into something valid.
TEST(ValidateMetadata, JudgesExtremeWordsByTheDefinition) {
  const std::vector<int32_t> extremes = {
      static_cast<int32_t>(kInt32Min), -1, 0, 1, 2, 1 << 30, static_cast<int32_t>(kInt32Max) - 1,
      static_cast<int32_t>(kInt32Max)};
  for (const int64_t num_rows : {int64_t{0}, int64_t{1}, int64_t{2}, kInt32Max - 1, kInt32Max}) {
    const Problem problem = ProblemOfRows(num_rows);
    Words words{};
    words[0] = static_cast<int32_t>(num_rows);
    for (const int32_t w1 : extremes) {
      for (const int32_t w2 : extremes) {
        for (const int32_t w3 : extremes) {
          for (const int32_t w4 : extremes) {
            words[1] = w1;
            words[2] = w2;
            words[3] = w3;
            words[4] = w4;
            ASSERT_EQ(ValidateMetadata(RecordOf(words), problem).ok(),
                      IsValidForRows(words, num_rows))
                << "T " << num_rows << " words " << w1 << " " << w2 << " " << w3 << " " << w4;
          }
        }
      }
    }
  }
}

class MetadataInput : public ::testing::Test {
 protected:
  void ExpectRefused(const ConstTensor& tensor, StatusCode code) const {
    const Status status = CheckMetadataInput(tensor, problem_);
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_EQ(test::ArgumentOf(status), "metadata");
    EXPECT_TRUE(test::HasMessageForm(status)) << status.message();
  }

  const Problem problem_ = ProblemOfRows(25);
  const Words words_ = WordsOf(SplitRows(25, 20, 9));
};

TEST_F(MetadataInput, MayBeAbsent) {
  EXPECT_TRUE(CheckMetadataInput(ConstTensor(), problem_).ok());
  EXPECT_TRUE(CheckMetadataInput(ConstTensor(nullptr, DType::kOther, {0}), problem_).ok());
  EXPECT_TRUE(CheckMetadataInput(ConstTensor(nullptr, DType::kInt32, {64, 0}), problem_).ok());
}

TEST_F(MetadataInput, MayBeStrided) {
  for (const int64_t stride : {1, 2, -1, -3}) {
    const int64_t step = stride < 0 ? -stride : stride;
    std::vector<int32_t> memory(kMetadataWords * step, -5);
    int32_t* first = memory.data() + (stride < 0 ? (kMetadataWords - 1) * step : 0);
    for (int64_t word = 0; word < kMetadataWords; ++word) first[word * stride] = words_[word];
    const ConstTensor tensor(first, DType::kInt32, 1, {kMetadataWords}, {stride});
    EXPECT_TRUE(CheckMetadataInput(tensor, problem_).ok()) << stride;
    first[4 * stride] += 1;
    ExpectRefused(tensor, StatusCode::kInvalidArgument);
  }
}

TEST_F(MetadataInput, MustStayWithinAnAddressSpace) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  for (const int64_t stride : {int64_t{1} << 60, kLowest, kLowest + 1, -(kLowest + 1)}) {
    ExpectRefused(ConstTensor(words_.data(), DType::kInt32, 1, {kMetadataWords}, {stride}),
                  StatusCode::kInvalidArgument);
  }
}

TEST_F(MetadataInput, MustBeARecord) {
  const int32_t* data = words_.data();
  ExpectRefused(ConstTensor(data, DType::kInt32, {63}), StatusCode::kInvalidArgument);
  ExpectRefused(ConstTensor(data, DType::kInt32, {65}), StatusCode::kInvalidArgument);
  ExpectRefused(ConstTensor(data, DType::kInt32, {64, 1}), StatusCode::kInvalidArgument);
  ExpectRefused(ConstTensor(data, DType::kInt32, {}), StatusCode::kInvalidArgument);
  ExpectRefused(ConstTensor(nullptr, DType::kInt32, {64}), StatusCode::kInvalidArgument);
  ExpectRefused(ConstTensor(data, DType::kFloat32, {64}), StatusCode::kInvalidDtype);
  ExpectRefused(ConstTensor(data, DType::kOther, {64}), StatusCode::kInvalidDtype);
  EXPECT_TRUE(CheckMetadataInput(ConstTensor(data, DType::kInt32, {64}), problem_).ok());
}

}  // namespace
}  // namespace kindling
