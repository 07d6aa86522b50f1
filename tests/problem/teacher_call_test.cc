// What AttentionL1Norm refuses, and the width of the teacher that it writes
// (src/problem/operator_call.cc).
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "problem/operator_args.h"
#include "problem/operator_call.h"

namespace kindling {
namespace {

using test::Arena;
using test::ArgumentOf;
using test::DropDim;
using test::OperatorShape;
using test::SetDim;
using test::ValidAttentionL1Norm;
using Teacher = AttentionL1NormArgs;
using Faults = std::vector<test::OperatorFault<Teacher>>;

constexpr StatusCode kDtypeCode = StatusCode::kInvalidDtype;
constexpr OperatorShape kPacked{.num_key_heads = 2};
constexpr OperatorShape kPadded{
    .layout_q = Layout::kBsnd, .layout_k = Layout::kBsnd, .num_key_heads = 2};
constexpr OperatorShape kPackedRows{.layout_k = Layout::kBsnd, .num_key_heads = 2};
constexpr OperatorShape kPackedKeys{.layout_q = Layout::kBsnd, .num_key_heads = 2};
constexpr OperatorShape kShapes[] = {kPacked, kPadded, kPackedRows, kPackedKeys};

Status Check(const Teacher& args) {
  return CheckAttentionL1Norm(args, Precision::kNative).status();
}

void ExpectRefuses(const OperatorShape& shape, const Faults& faults) {
  test::ExpectRefused(shape, faults, ValidAttentionL1Norm, Check);
}

TEST(AttentionL1NormCall, AcceptsEveryLayoutDtypeAndGrouping) {
  for (OperatorShape shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const int64_t num_key_heads : {1, 2, 4}) {
        shape.dtype = dtype;
        shape.num_key_heads = num_key_heads;
        Arena arena;
        Teacher args = ValidAttentionL1Norm(shape, arena);
        Result<OperatorCall> call = CheckAttentionL1Norm(args, Precision::kNative);
        ASSERT_TRUE(call.ok()) << call.status().message();
        EXPECT_EQ(call.value().attention.num_heads, 4);
        EXPECT_EQ(call.value().attention.num_key_heads, num_key_heads);
        EXPECT_EQ(call.value().row_stride_p, shape.width());
        EXPECT_EQ(call.value().p_out.data, args.p.data);
        EXPECT_EQ(call.value().lse.data, args.lse.data);
        args.lse = {};
        call = CheckAttentionL1Norm(args, Precision::kNative);
        ASSERT_TRUE(call.ok()) << call.status().message();
        EXPECT_FALSE(call.value().lse);
      }
    }
  }
}

TEST(AttentionL1NormCall, KeepsTheHeadStrideOfLse) {
  Arena arena;
  Teacher args = ValidAttentionL1Norm(kPadded, arena);
  args.lse.strides = {100, 50, 7, -3};
  const Result<OperatorCall> call = CheckAttentionL1Norm(args, Precision::kNative);
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call.value().lse.RowOffset(1, 0, 2), 114);
  EXPECT_EQ(call.value().lse.head_stride, -3);
}

TEST(AttentionL1NormCall, Refuses) {
  const Faults faults = {
      {"none", "q", [](Teacher& a) { a.q = {}; }},
      {"none", "k", [](Teacher& a) { a.k = {}; }},
      {"none", "p", [](Teacher& a) { a.p = {}; }},
      {"rank", "q", [](Teacher& a) { DropDim(a.q); }},
      {"rank", "k", [](Teacher& a) { DropDim(a.k); }},
      {"rank", "lse", [](Teacher& a) { DropDim(a.lse); }},
      {"rank", "p", [](Teacher& a) { DropDim(a.p); }},
      {"int32", "q", [](Teacher& a) { a.q.dtype = DType::kInt32; }, kDtypeCode},
      {"not q's", "k", [](Teacher& a) { a.k.dtype = DType::kBFloat16; }, kDtypeCode},
      {"float64", "lse", [](Teacher& a) { a.lse.dtype = DType::kFloat64; }, kDtypeCode},
      {"bf16", "p", [](Teacher& a) { a.p.dtype = DType::kBFloat16; }, kDtypeCode},
      {"no data", "p", [](Teacher& a) { a.p.data = nullptr; }},
      {"p over q", "p", [](Teacher& a) { a.p.data = const_cast<void*>(a.q.data); }},
      {"p over lse", "p", [](Teacher& a) { a.p.data = const_cast<void*>(a.lse.data); }},
      {"NaN", "softmax_scale",
       [](Teacher& a) { a.softmax_scale = std::numeric_limits<double>::quiet_NaN(); }},
      {"infinite", "softmax_scale",
       [](Teacher& a) { a.softmax_scale = -std::numeric_limits<double>::infinity(); }},
      {"mask 4", "mask_mode", [](Teacher& a) { a.mask_mode = 4; }},
      {"ratio 0", "cmp_ratio", [](Teacher& a) { a.cmp_ratio = 0; }},
  };
  for (const OperatorShape& shape : kShapes) ExpectRefuses(shape, faults);
  ExpectRefuses(kPacked, {
                             {"3 key heads of 4", "k", [](Teacher& a) { SetDim(a.k, 1, 3); }},
                             {"8 key heads of 4", "k", [](Teacher& a) { SetDim(a.k, 1, 8); }},
                             {"no key heads", "k", [](Teacher& a) { SetDim(a.k, 1, 0); }},
                             {"width", "k", [](Teacher& a) { SetDim(a.k, 2, 4); }},
                             {"rows", "lse", [](Teacher& a) { SetDim(a.lse, 1, 4); }},
                             {"heads", "lse", [](Teacher& a) { SetDim(a.lse, 2, 2); }},
                             {"2 key heads", "p", [](Teacher& a) { SetDim(a.p, 1, 2); }},
                             {"rows", "p", [](Teacher& a) { SetDim(a.p, 0, 4); }},
                             {"columns", "p", [](Teacher& a) { SetDim(a.p, 2, 2); }},
                             {"gaps", "p", [](Teacher& a) { a.p.strides[0] = 7; }},
                         });
  ExpectRefuses(kPadded, {
                             {"columns", "p", [](Teacher& a) { SetDim(a.p, 3, 5); }},
                             {"batches", "lse", [](Teacher& a) { SetDim(a.lse, 0, 1); }},
                             {"batches", "k", [](Teacher& a) { SetDim(a.k, 0, 3); }},
                         });
}

TEST(TeacherWidth, IsTheLargestVisibleCountAtLeast) {
  // The longest sequence has no rows, the second longest uses two of its keys.
  static const int32_t cu_q[] = {0, 0, 3, 5};
  static const int32_t cu_k[] = {0, 2, 3, 4};
  static const int32_t used_k[] = {2, 0, 1};
  Arena arena;
  Teacher args = ValidAttentionL1Norm(kPacked, arena);
  args.cu_seqlens_q = ConstTensor(cu_q, DType::kInt32, {4});
  args.cu_seqlens_k = ConstTensor(cu_k, DType::kInt32, {4});
  args.p = arena.New(DType::kFloat32, {5, 1, 1});
  EXPECT_TRUE(Check(args).ok()) << Check(args).message();
  args.p = arena.New(DType::kFloat32, {5, 1, 0});
  EXPECT_EQ(ArgumentOf(Check(args)), "p");
  args.seqused_k = ConstTensor(used_k, DType::kInt32, {3});
  EXPECT_EQ(ArgumentOf(Check(args)), "p") << "the last sequence sees a key";
  static const int32_t unseen[] = {2, 0, 0};
  args.seqused_k = ConstTensor(unseen, DType::kInt32, {3});
  EXPECT_TRUE(Check(args).ok()) << Check(args).message();
}

TEST(AttentionL1NormCall, RefusesPrefixSumsOfAPaddedSide) {
  test::ExpectSumsRefusedWherePadded(ValidAttentionL1Norm, Check, [](const Teacher& args) {
    return DescribeAttentionL1Norm(args, Precision::kNative);
  });
}

TEST(TeacherStrideOf, DenseKeysIsTheirLengthWhateverIsAsked) {
  Arena arena;
  const Teacher args = ValidAttentionL1Norm(kPadded, arena);
  for (const int64_t max_seqlen_k : {0, 1, 4, 100}) {
    const Result<int64_t> stride = TeacherStride(args, max_seqlen_k);
    ASSERT_TRUE(stride.ok()) << stride.status().message();
    EXPECT_EQ(stride.value(), 4);
  }
}

TEST(TeacherStrideOf, PackedIsMaxSeqlenOrTheLongestAllocated) {
  static const int32_t used_k[] = {1, 1};
  for (const OperatorShape& shape : {kPacked, kPackedKeys, kPackedRows}) {
    const int64_t allocated = shape.packed_k() ? 3 : 4;
    Arena arena;
    Teacher args = ValidAttentionL1Norm(shape, arena);
    args.p = {};  // is not looked at
    EXPECT_EQ(TeacherStride(args, 0).value(), allocated);
    EXPECT_EQ(TeacherStride(args, allocated).value(), allocated);
    EXPECT_EQ(TeacherStride(args, 1000).value(), 1000);
    EXPECT_EQ(ArgumentOf(TeacherStride(args, allocated - 1).status()), "max_seqlen_k");
    args.seqused_k = ConstTensor(used_k, DType::kInt32, {2});
    EXPECT_EQ(TeacherStride(args, 0).value(), allocated) << "allocated, not used";
    EXPECT_EQ(TeacherStride(args, 1).value(), 1) << "one key is visible";
  }
}

TEST(TeacherStrideOf, RefusesWhatTheOperatorRefuses) {
  for (const OperatorShape& shape : kShapes) {
    Arena arena;
    Teacher args = ValidAttentionL1Norm(shape, arena);
    const Status negative = TeacherStride(args, -1).status();
    EXPECT_EQ(negative.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(ArgumentOf(negative), "max_seqlen_k");
    args.k.dtype = DType::kInt32;
    EXPECT_EQ(TeacherStride(args, 0).status().code(), kDtypeCode);
    EXPECT_EQ(ArgumentOf(TeacherStride(args, 0).status()), "k");
  }
}

TEST(TeacherStrideOf, WorksForTheReferenceToo) {
  OperatorShape shape = kPacked;
  shape.dtype = shape.wide = DType::kFloat64;
  Arena arena;
  EXPECT_EQ(TeacherStride(ValidAttentionL1Norm(shape, arena), 5).value(), 5);
}

}  // namespace
}  // namespace kindling
