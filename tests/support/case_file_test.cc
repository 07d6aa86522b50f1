#include "support/case_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace kindling::test {
namespace {

TEST(CaseLine, SaysWhatItSays) {
  const auto line = ParseCaseLine(
      "grad threads=2 goal=x isa=avx2 loss=yes softmax=no dtype=bf16 mask=3 heads=8 dim=64 "
      "rows=3,4 keys=5,6");
  ASSERT_TRUE(line.has_value());
  ASSERT_EQ(line->sides.size(), 1u);
  const OperatorCase& side = line->sides[0];
  EXPECT_EQ(side.op, Operator::kGrad);
  EXPECT_EQ(side.num_threads, 2);
  EXPECT_EQ(side.goal, "x");
  EXPECT_EQ(side.isa, Isa::kAvx2);
  EXPECT_TRUE(side.loss_rows);
  EXPECT_FALSE(side.softmax_out);
  EXPECT_EQ(side.spec.dtype, DType::kBFloat16);
  EXPECT_EQ(side.spec.mask_mode, MaskMode::kCausal);
  EXPECT_EQ(side.spec.num_rows, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(side.spec.num_keys, (std::vector<int64_t>{5, 6}));
}

TEST(CaseLine, Defaults) {
  const auto line = ParseCaseLine("teacher rows=1 keys=1");
  ASSERT_TRUE(line.has_value());
  const OperatorCase& side = line->sides[0];
  EXPECT_EQ(side.op, Operator::kTeacher);
  EXPECT_EQ(side.num_threads, 1);
  EXPECT_FALSE(side.isa.has_value());
  EXPECT_FALSE(side.loss_rows);
  EXPECT_TRUE(side.softmax_out);
  EXPECT_TRUE(side.teacher_lse);
}

TEST(CaseLine, AStepHasLossRowsAndNoSoftmax) {
  const auto line = ParseCaseLine("step rows=1 keys=1");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->sides[0].op, Operator::kStep);
  EXPECT_TRUE(line->sides[0].loss_rows);
  EXPECT_FALSE(line->sides[0].softmax_out);
}

TEST(CaseLine, TwoSides) {
  const auto line = ParseCaseLine("lse rows=1 keys=2 / teacher lse=absent rows=3 keys=4");
  ASSERT_TRUE(line.has_value());
  ASSERT_EQ(line->sides.size(), 2u);
  EXPECT_EQ(line->sides[0].op, Operator::kLse);
  EXPECT_EQ(line->sides[0].spec.num_keys[0], 2);
  EXPECT_EQ(line->sides[1].op, Operator::kTeacher);
  EXPECT_FALSE(line->sides[1].teacher_lse);
  EXPECT_EQ(line->sides[1].spec.num_rows[0], 3);
}

TEST(CaseLine, WhatItDoesNotKnowIsRefused) {
  for (const char* text :
       {"", "gradient rows=1 keys=1", "grad rows", "grad rows=1 keys=1,2", "grad threads=0",
        "grad threads=two", "grad threads", "grad isa=mmx", "grad loss=maybe", "grad lse=yes",
        "grad colour=red", "grad rows=1 keys=1 / ", "grad rows=1 keys=1 / x"}) {
    EXPECT_FALSE(ParseCaseLine(text).has_value()) << text;
  }
}

TEST(CaseFile, SkipsCommentsAndNamesTheLineThatIsWrong) {
  const std::string path = testing::TempDir() + "case_file_test.txt";
  std::ofstream(path) << "# a comment\n\nlse rows=1 keys=1\n";
  CaseFile file = ReadCaseFile(path);
  EXPECT_EQ(file.error, "");
  ASSERT_EQ(file.lines.size(), 1u);
  EXPECT_EQ(file.lines[0].text, "lse rows=1 keys=1");
  std::ofstream(path) << "# a comment\nno operator\n";
  file = ReadCaseFile(path);
  EXPECT_EQ(file.error, path + ":2: expected a problem, got no operator");
  std::remove(path.c_str());
  EXPECT_EQ(ReadCaseFile(path).error, path + ": expected a file of problems, got none");
}

TEST(CaseFile, EveryFileOfTheTreeCanBeRead) {
  for (const char* name : {"curve", "goals", "instructions"}) {
    const CaseFile file = ReadCaseFile(CasesFolder() + "/" + name + ".txt");
    EXPECT_EQ(file.error, "");
    EXPECT_FALSE(file.lines.empty()) << name;
  }
}

}  // namespace
}  // namespace kindling::test
