// The records of the two companions: every record of some number of cores is valid, and no other.
#include "records.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

namespace kindling::acl {
namespace {

using Split = MetadataWords (*)(int64_t, int64_t);
using Validate = Status (*)(const ConstTensor&, int64_t);

ConstTensor View(const MetadataWords& words) {
  return ConstTensor(words.data(), DType::kInt32, {kMetadataWords});
}

TEST(Records, Lse) {
  const auto words = [](int64_t num_rows, int64_t num_cores) {
    const MetadataWords all = SplitForLse(num_rows, num_cores);
    EXPECT_TRUE(std::all_of(all.begin() + 4, all.end(), [](int32_t word) { return word == 0; }));
    return std::array<int32_t, 4>{all[0], all[1], all[2], all[3]};
  };
  EXPECT_EQ(words(0, 8), (std::array<int32_t, 4>{0, 0, 1, 0}));
  EXPECT_EQ(words(5, 8), (std::array<int32_t, 4>{5, 0, 1, 0}));
  EXPECT_EQ(words(8, 8), (std::array<int32_t, 4>{8, 0, 1, 0}));
  EXPECT_EQ(words(24, 8), (std::array<int32_t, 4>{8, 0, 3, 0}));
  EXPECT_EQ(words(25, 8), (std::array<int32_t, 4>{1, 7, 4, 3}));
}

TEST(Records, Teacher) {
  const auto words = [](int64_t num_rows, int64_t num_cores) {
    const MetadataWords all = SplitForTeacher(num_rows, num_cores);
    EXPECT_TRUE(std::all_of(all.begin() + 5, all.end(), [](int32_t word) { return word == 0; }));
    return std::array<int32_t, 5>{all[0], all[1], all[2], all[3], all[4]};
  };
  EXPECT_EQ(words(0, 8), (std::array<int32_t, 5>{}));
  EXPECT_EQ(words(5, 8), (std::array<int32_t, 5>{5, 1, 1, 0, 5}));
  EXPECT_EQ(words(25, 8), (std::array<int32_t, 5>{25, 4, 3, 7, 8}));
  EXPECT_EQ(words(100, 64), (std::array<int32_t, 5>{100, 3, 2, 8, 36}));
}

// Over all small records: valid where some number of cores gives it.
TEST(Records, AreValidWhereSomeNumberOfCoresGivesThem) {
  const struct {
    Split split;
    Validate validate;
  } kinds[] = {{SplitForLse, ValidateLseRecord}, {SplitForTeacher, ValidateTeacherRecord}};
  for (const auto& kind : kinds) {
    for (int64_t num_rows = 0; num_rows <= 5; ++num_rows) {
      std::set<MetadataWords> valid;
      for (int64_t num_cores = 1; num_cores <= 50; ++num_cores) {
        valid.insert(kind.split(num_rows, num_cores));
      }
      MetadataWords words{};
      for (int code = 0; code < 8 * 8 * 8 * 8 * 8; ++code) {
        for (int word = 0, rest = code; word < 5; ++word, rest /= 8) words[word] = rest % 8 - 1;
        ASSERT_EQ(kind.validate(View(words), num_rows).ok(), valid.contains(words))
            << num_rows << " rows: " << words[0] << ", " << words[1] << ", " << words[2] << ", "
            << words[3] << ", " << words[4];
      }
    }
  }
}

TEST(Records, NameTheWordThatIsWrong) {
  MetadataWords words = SplitForTeacher(25, 8);
  words[63] = 1;
  EXPECT_EQ(ValidateTeacherRecord(View(words), 25).message(), "metadata[63]: expected 0, got 1");
  words = SplitForLse(25, 8);
  EXPECT_EQ(ValidateLseRecord(View(words), 26).message(), "metadata[0]: expected 2, got 1");
}

TEST(Records, AreStoredAndReadAtAnyStride) {
  std::vector<int32_t> memory(3 * kMetadataWords, -1);
  const Tensor strided(memory.data(), DType::kInt32, 1, {kMetadataWords}, {3});
  StoreWords(SplitForLse(25, 8), strided);
  EXPECT_TRUE(ValidateLseRecord(strided, 25).ok());
  EXPECT_EQ(memory[3], 7);
  EXPECT_EQ(memory[1], -1);
}

}  // namespace
}  // namespace kindling::acl
