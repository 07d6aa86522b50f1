// What the checks of src/problem/lengths.cc let through, what their messages say, and their limits.
// Which check finds what, and in which order, is the subject of check_order_test.cc.
#include "problem/lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "problem/lengths_case.h"

namespace kindling {
namespace {

using test::ArgumentOf;
using test::LengthsCase;

constexpr int32_t kInt32Max = 2147483647;

Result<LengthTotals> Totals(const MetadataArgs& args) {
  const Result<Lengths> lengths = DescribeMetadataArgs(args, nullptr);
  if (!lengths.ok()) return lengths.status();
  return CheckLengthValues(lengths.value());
}

Result<LengthTotals> Totals(const LengthsCase& lengths) { return Totals(lengths.Args()); }

std::string MessageOf(const LengthsCase& lengths) { return Totals(lengths).status().message(); }

// The argument that a refusal names.
std::string RefusedArgument(const LengthsCase& lengths) {
  const Status status = Totals(lengths).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  return ArgumentOf(status);
}

void ExpectTotals(const MetadataArgs& args, int64_t num_rows, int64_t max_num_keys) {
  const Result<LengthTotals> totals = Totals(args);
  ASSERT_TRUE(totals.ok()) << totals.status().message();
  EXPECT_EQ(totals.value().num_rows, num_rows);
  EXPECT_EQ(totals.value().max_num_keys, max_num_keys);
}

void ExpectTotals(const LengthsCase& lengths, int64_t num_rows, int64_t max_num_keys) {
  ExpectTotals(lengths.Args(), num_rows, max_num_keys);
}

bool Contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

LengthsCase Dense(int64_t batch_size, int64_t max_seqlen_q, int64_t max_seqlen_k) {
  LengthsCase lengths;
  lengths.layout_q = lengths.layout_k = "BSND";
  lengths.batch_size = batch_size;
  lengths.max_seqlen_q = max_seqlen_q;
  lengths.max_seqlen_k = max_seqlen_k;
  return lengths;
}

LengthsCase Packed(std::vector<int32_t> cu_q, std::vector<int32_t> cu_k) {
  LengthsCase lengths;
  lengths.cu_q = std::move(cu_q);
  lengths.cu_k = std::move(cu_k);
  return lengths;
}

TEST(Attributes, EndsOfTheRangesAreAllowed) {
  const LengthsCase lengths = Dense(2, 3, 4);
  MetadataArgs args = lengths.Args();
  for (const int64_t heads : {1, 128}) {
    args.num_heads_q = heads;
    ExpectTotals(args, 6, 4);
  }
  for (const int64_t ratio : {1, 128}) {
    args.cmp_ratio = ratio;
    ExpectTotals(args, 6, 4);
  }
  for (const int64_t cores : {1, kInt32Max}) {
    args.num_cores = args.num_vector_cores = cores;
    ExpectTotals(args, 6, 4);
  }
}

TEST(Attributes, OfAPackedSideAreIgnored) {
  LengthsCase lengths = Packed({0, 2, 5}, {0, 1, 9});
  for (const int64_t max_seqlen : {int64_t{0}, int64_t{1}, int64_t{1} << 60, INT64_MAX}) {
    lengths.max_seqlen_q = lengths.max_seqlen_k = max_seqlen;
    ExpectTotals(lengths, 5, 8);
  }
}

// Batch counts may come from seqused in BSND, so that batch_size is not needed.
TEST(BatchCount, ComesFromTheTensors) {
  LengthsCase lengths = Dense(0, 5, 6);
  lengths.used_q = {1, 0, 5};
  lengths.used_k = {6, 2, 0};
  ExpectTotals(lengths, 6, 6);
  lengths.layout_k = "TND";
  lengths.cu_k = {0, 6, 9, 9};
  lengths.used_k = {};
  ExpectTotals(lengths, 6, 6);
  lengths.batch_size = 3;
  ExpectTotals(lengths, 6, 6);
}

TEST(BatchCount, OfZeroIsAllowedWherePacked) {
  ExpectTotals(Packed({0}, {0}), 0, 0);
  LengthsCase lengths = Packed({0}, {});
  lengths.layout_k = "BSND";
  lengths.max_seqlen_k = 7;
  ExpectTotals(lengths, 0, 0);
}

TEST(BatchCount, MismatchNamesBothSourcesAndBothCounts) {
  LengthsCase lengths = Packed({0, 1, 2, 3, 4}, {0, 1});
  std::string message = MessageOf(lengths);
  for (const std::string_view part : {"cu_seqlens_q", "cu_seqlens_k", "4", "1"}) {
    EXPECT_TRUE(Contains(message, part)) << part << ": " << message;
  }
  lengths.layout_q = "BSND";
  lengths.max_seqlen_q = 9;
  lengths.batch_size = 77;
  lengths.used_k = {1, 1, 1, 1, 1};
  message = MessageOf(lengths);
  for (const std::string_view part : {"batch_size", "seqused_k", "77", "5"}) {
    EXPECT_TRUE(Contains(message, part)) << part << ": " << message;
  }
}

TEST(Messages, NameIndexAndNumber) {
  LengthsCase lengths = Packed({0, 4, 40, 36, 50}, {0, 1, 2, 3, 4});
  EXPECT_EQ(MessageOf(lengths), "cu_seqlens_q[3]: expected >= cu_seqlens_q[2] = 40, got 36");
  lengths.cu_q = {0, 4, 40, -36, 50};
  EXPECT_EQ(MessageOf(lengths), "cu_seqlens_q[3]: expected >= 0, got -36");
  lengths.cu_q = {2, 4, 40, 46, 50};
  EXPECT_EQ(MessageOf(lengths), "cu_seqlens_q[0]: expected 0, got 2");
  lengths.cu_q = {0, 4, 10, 16, 20};
  lengths.used_q = {4, 7, 0, 5};
  EXPECT_TRUE(MessageOf(lengths).starts_with("seqused_q[1]: ")) << MessageOf(lengths);
  EXPECT_TRUE(Contains(MessageOf(lengths), "6")) << "the allocated length: " << MessageOf(lengths);
  EXPECT_TRUE(MessageOf(lengths).ends_with("got 7")) << MessageOf(lengths);
  lengths.used_q = {4, 6, 0, 4};
  lengths.residual = {0, 0, 0, 3};
  lengths.cmp_ratio = 3;
  EXPECT_TRUE(MessageOf(lengths).starts_with("cmp_residual_k[3]: ")) << MessageOf(lengths);
  EXPECT_TRUE(MessageOf(lengths).ends_with("got 3")) << MessageOf(lengths);
}

TEST(Messages, AreShortWhateverTheLayout) {
  const std::string layout(1000000, 'x');
  LengthsCase lengths = Dense(1, 1, 1);
  lengths.layout_q = layout;
  EXPECT_LT(MessageOf(lengths).size(), 200u);
}

TEST(LengthTensors, WithoutElementsAreAbsent) {
  const int32_t unread = -1;
  const LengthsCase lengths = Dense(2, 3, 4);
  MetadataArgs args = lengths.Args();
  args.cu_seqlens_q = args.cu_seqlens_k = ConstTensor(&unread, DType::kInt32, {0});
  args.seqused_q = ConstTensor(&unread, DType::kFloat32, {0});
  args.seqused_k = ConstTensor(nullptr, DType::kOther, {3, 0});
  args.cmp_residual_k = ConstTensor(nullptr, DType::kInt32, {0});
  ExpectTotals(args, 6, 4);
}

TEST(LengthTensors, NeedAPointerAndAPlainLength) {
  const struct {
    ConstTensor SequenceArgs::* tensor;
    std::string_view name;
  } tensors[] = {{&SequenceArgs::cu_seqlens_q, "cu_seqlens_q"},
                 {&SequenceArgs::cu_seqlens_k, "cu_seqlens_k"},
                 {&SequenceArgs::seqused_q, "seqused_q"},
                 {&SequenceArgs::seqused_k, "seqused_k"},
                 {&SequenceArgs::cmp_residual_k, "cmp_residual_k"}};
  for (const auto& [tensor, name] : tensors) {
    LengthsCase lengths = Packed({0, 2, 4}, {0, 2, 4});
    lengths.used_q = lengths.used_k = {1, 2};
    lengths.residual = {0, 0};
    MetadataArgs args = lengths.Args();
    (args.*tensor).data = nullptr;
    EXPECT_EQ(Totals(args).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ArgumentOf(Totals(args).status()), name);
    args = lengths.Args();
    (args.*tensor).shape[0] = -2;
    EXPECT_EQ(Totals(args).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ArgumentOf(Totals(args).status()), name);
  }
}

// A cu_seqlens tensor of a BSND side says nothing, but what is given must be sound.
TEST(LengthTensors, OfTheOtherLayoutAreChecked) {
  LengthsCase lengths = Dense(2, 3, 4);
  lengths.cu_q = {0, 1, 1, 1, 100};
  lengths.cu_k = {0};
  ExpectTotals(lengths, 6, 4);
  lengths.cu_q[0] = 1;
  EXPECT_EQ(RefusedArgument(lengths), "cu_seqlens_q");
}

TEST(Residual, IsCheckedWithoutAMaskAndZeroForRatioOne) {
  LengthsCase lengths = Packed({0, 2, 4}, {0, 2, 4});
  lengths.residual = {0, 0};
  ExpectTotals(lengths, 4, 2);
  for (const int64_t mask_mode : {0, 3}) {
    lengths.mask_mode = mask_mode;
    lengths.cmp_ratio = 1;
    lengths.residual = {0, 1};
    EXPECT_EQ(RefusedArgument(lengths), "cmp_residual_k");
    lengths.residual = {0, 0, 0};
    EXPECT_EQ(RefusedArgument(lengths), "cmp_residual_k");
    lengths.cmp_ratio = 128;
    lengths.residual = {127, 0};
    ExpectTotals(lengths, 4, 2);
  }
}

TEST(Residual, MayBeAbsentWithoutAMaskOrRatio) {
  LengthsCase lengths = Packed({0, 2, 4}, {0, 2, 4});
  lengths.cmp_ratio = 7;
  ExpectTotals(lengths, 4, 2);
  lengths.cmp_ratio = 1;
  lengths.mask_mode = 3;
  ExpectTotals(lengths, 4, 2);
  lengths.cmp_ratio = 2;
  EXPECT_EQ(RefusedArgument(lengths), "cmp_residual_k");
}

TEST(Int32Max, RowsOfDenseBatches) {
  ExpectTotals(Dense(1, kInt32Max, 1), kInt32Max, 1);
  ExpectTotals(Dense(kInt32Max, 1, 1), kInt32Max, 1);
  ExpectTotals(Dense(65535, 32768, 1), 2147450880, 1);
  EXPECT_EQ(RefusedArgument(Dense(1, int64_t{1} << 31, 1)), "max_seqlen_q");
  EXPECT_EQ(RefusedArgument(Dense(int64_t{1} << 31, 1, 1)), "batch_size");
  EXPECT_EQ(RefusedArgument(Dense(65536, 32768, 1)), "batch_size");
  EXPECT_EQ(RefusedArgument(Dense(2, 1 << 30, 1)), "batch_size");
}

// Keys have no limit on their total: only each length counts.
TEST(Int32Max, Keys) {
  ExpectTotals(Dense(3, 1, kInt32Max), 3, kInt32Max);
  EXPECT_EQ(RefusedArgument(Dense(3, 1, int64_t{1} << 31)), "max_seqlen_k");
  ExpectTotals(Packed({0, 1}, {0, kInt32Max}), 1, kInt32Max);
}

TEST(Int32Max, RowsOfRaggedBatches) {
  ExpectTotals(Packed({0, 7, kInt32Max}, {0, 1, 2}), kInt32Max, 1);
  LengthsCase lengths = Dense(0, kInt32Max, kInt32Max);
  lengths.used_k = {0, kInt32Max};
  lengths.used_q = {1 << 30, (1 << 30) - 1};
  ExpectTotals(lengths, kInt32Max, kInt32Max);
  lengths.used_q = {1 << 30, 1 << 30};
  EXPECT_EQ(RefusedArgument(lengths), "seqused_q");
  lengths.used_q = {kInt32Max, kInt32Max};
  EXPECT_TRUE(Contains(MessageOf(lengths), "got 4294967294")) << MessageOf(lengths);
}

// An allocated length counts even if no batch uses all of it: places in storage are its multiples.
TEST(Int32Max, AllocatedLengthsOfWhichLittleIsUsed) {
  LengthsCase lengths = Dense(0, kInt32Max, kInt32Max);
  lengths.used_q = lengths.used_k = {1, 1, 1, 1};
  ExpectTotals(lengths, 4, 1);
  const Result<Problem> problem = Problem::Create(lengths.Args());
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  const int64_t third = int64_t{3} * kInt32Max;
  EXPECT_EQ(test::FactsOf(problem.value().Locate(3)), (test::RowFacts{3, 0, third, third, 1}));
  for (const int exponent : {31, 32, 61, 62}) {
    lengths.max_seqlen_k = int64_t{1} << exponent;
    EXPECT_EQ(RefusedArgument(lengths), "max_seqlen_k") << exponent;
    lengths.max_seqlen_q = int64_t{1} << exponent;
    EXPECT_EQ(RefusedArgument(lengths), "max_seqlen_q") << exponent;
    lengths.max_seqlen_q = kInt32Max;
  }
}

// Answers come from arithmetic on the attributes, not from walking what they promise: a loop over
// 2^60 batches would never end.
TEST(HugeAttributes, AnswerAtOnce) {
  const struct {
    LengthsCase lengths;
    std::string_view argument;
  } cases[] = {
      {Dense(int64_t{1} << 60, 1, 1), "batch_size"},
      {Dense(int64_t{1} << 60, int64_t{1} << 30, 1), "batch_size"},
      {Dense(INT64_MAX, kInt32Max, kInt32Max), "batch_size"},
      {Dense(1, int64_t{1} << 60, 1), "max_seqlen_q"},
      {Dense(INT64_MAX, INT64_MAX, INT64_MAX), "max_seqlen_q"},
      {Dense(1, 1, INT64_MAX), "max_seqlen_k"},
      {Dense(1, (int64_t{1} << 32) + 5, 1), "max_seqlen_q"},
      {Dense((int64_t{1} << 32) + 1, 1, 1), "batch_size"},
  };
  for (const auto& [lengths, argument] : cases) {
    EXPECT_EQ(RefusedArgument(lengths), argument) << MessageOf(lengths);
    EXPECT_EQ(ArgumentOf(Problem::Create(lengths.Args()).status()), argument);
  }
}

// A vector laid out with `stride` elements from one entry to the next.
struct Strided {
  Strided(const std::vector<int32_t>& values, int64_t stride, int32_t filler = -999) {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t step = stride < 0 ? -stride : stride;
    memory.assign(size * step + 1, filler);
    const int64_t origin = stride < 0 ? (size - 1) * step : 0;
    for (int64_t i = 0; i < size; ++i) memory[origin + i * stride] = values[i];
    view = ConstTensor(memory.data() + origin, DType::kInt32, 1, {size}, {stride});
  }
  std::vector<int32_t> memory;
  ConstTensor view;
};

TEST(Strides, OfEveryKindAreRead) {
  LengthsCase lengths = Packed({0, 4, 4, 10}, {0, 5, 7, 12});
  lengths.residual = {1, 0, 3};
  lengths.mask_mode = 3;
  lengths.cmp_ratio = 4;
  for (const bool with_used : {false, true}) {
    if (with_used) {
      lengths.used_q = {3, 0, 6};
      lengths.used_k = {4, 1, 2};
    }
    const std::vector<test::RowFacts> rows = test::RowsOf(lengths);
    for (const int64_t stride : {1, 2, 5, -1, -3}) {
      const Strided cu_q(lengths.cu_q, stride), cu_k(lengths.cu_k, stride);
      const Strided used_q({3, 0, 6}, stride), used_k({4, 1, 2}, stride);
      const Strided residual(lengths.residual, stride);
      MetadataArgs args = lengths.Args();
      args.cu_seqlens_q = cu_q.view;
      args.cu_seqlens_k = cu_k.view;
      args.cmp_residual_k = residual.view;
      if (with_used) {
        args.seqused_q = used_q.view;
        args.seqused_k = used_k.view;
      }
      ExpectTotals(args, with_used ? 9 : 10, with_used ? 4 : 5);
      const Result<Problem> problem = Problem::Create(args);
      ASSERT_TRUE(problem.ok()) << problem.status().message();
      for (size_t t = 0; t < rows.size(); ++t) {
        ASSERT_EQ(test::FactsOf(problem.value().Locate(t)), rows[t]) << stride << " row " << t;
      }
    }
  }
}

TEST(Strides, FaultsAreFoundBehindThem) {
  LengthsCase lengths = Packed({0, 1, 2, 3}, {0, 4, 5, 10});
  lengths.cmp_ratio = 4;
  for (const int64_t stride : {2, -1, -3}) {
    // With the gaps, the entries never decrease.
    const Strided bad_cu({0, 4, 3, 10}, stride, 4), good_cu({0, 4, 5, 10}, stride);
    const Strided bad_used({4, 1, 9}, stride), bad_residual({0, 4, 0}, stride);
    MetadataArgs args = lengths.Args();
    args.cu_seqlens_q = bad_cu.view;
    EXPECT_TRUE(Totals(args).status().message().starts_with("cu_seqlens_q[2]: ")) << stride;
    args.cu_seqlens_q = good_cu.view;
    args.seqused_k = bad_used.view;
    EXPECT_TRUE(Totals(args).status().message().starts_with("seqused_k[2]: ")) << stride;
    args.seqused_k = ConstTensor();
    args.cmp_residual_k = bad_residual.view;
    EXPECT_TRUE(Totals(args).status().message().starts_with("cmp_residual_k[1]: ")) << stride;
  }
}

// Stride 0 repeats one number, as a broadcast view does.
TEST(Strides, ZeroRepeats) {
  const int32_t used = 3;
  const LengthsCase lengths = Dense(0, 5, 5);
  MetadataArgs args = lengths.Args();
  args.seqused_q = args.seqused_k = ConstTensor(&used, DType::kInt32, 1, {4}, {0});
  ExpectTotals(args, 12, 3);
}

}  // namespace
}  // namespace kindling
