// Descriptors that no honest caller makes: whatever they say, checking them neither overflows
// (which the asan preset's undefined-behaviour sanitizer would notice) nor lets them through as
// something small.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "problem/operator_args.h"
#include "problem/operator_call.h"

namespace kindling {
namespace {

using test::Arena;
using test::ValidKLLossGrad;

constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();
constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();

Status Check(const KLLossGradArgs& args) {
  return CheckKLLossGrad(args, Precision::kNative).status();
}

// Without a row there is no element, but the other extents are still there.
KLLossGradArgs CallWithoutTokens(Arena& arena, int64_t num_heads, int64_t head_dim) {
  static const int32_t nothing[] = {0, 0, 0};
  KLLossGradArgs args = ValidKLLossGrad({}, arena);
  args.cu_seqlens_q = args.cu_seqlens_k = ConstTensor(nothing, DType::kInt32, {3});
  args.q.shape = {0, num_heads, head_dim};
  args.dq.shape = args.q.shape;
  args.k.shape = {0, 1, head_dim};
  args.dk.shape = args.k.shape;
  args.w.shape = {0, num_heads};
  args.dw.shape = args.w.shape;
  args.p.shape[0] = args.softmax_out.shape[0] = 0;
  args.lse.shape[1] = args.row_scale.shape[1] = args.loss_rows.shape[1] = 0;
  return args;
}

TEST(HostileCall, EmptyTensorsMayHaveAnyExtents) {
  for (const auto& [num_heads, head_dim] : {std::pair{4, kInt64Max},
                                            {kInt64Max, 8},
                                            {kInt64Max, kInt64Max},
                                            {int64_t{1} << 40, int64_t{1} << 40}}) {
    Arena arena;
    const Status status = Check(CallWithoutTokens(arena, num_heads, head_dim));
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kInvalidArgument);
  }
  Arena arena;
  EXPECT_TRUE(Check(CallWithoutTokens(arena, 4, 8)).ok());
}

// Byte offsets that 64 bits do not hold belong to no memory.
TEST(HostileCall, StridesThatLeaveTheAddressSpaceAreRefused) {
  for (const int64_t stride : {int64_t{1} << 61, int64_t{1} << 62, kInt64Max, kInt64Min}) {
    Arena arena;
    KLLossGradArgs args = ValidKLLossGrad({}, arena);
    args.q.strides[0] = stride;
    EXPECT_EQ(Check(args).code(), StatusCode::kInvalidArgument) << stride;
    args = ValidKLLossGrad({}, arena);
    args.lse.strides[1] = stride;
    EXPECT_EQ(Check(args).code(), StatusCode::kInvalidArgument) << stride;
  }
}

// A dim of one element, or of none, has no stride to speak of.
TEST(HostileCall, StridesOfSingleElementsMeanNothing) {
  Arena arena;
  KLLossGradArgs args = ValidKLLossGrad({}, arena);
  args.k.strides[1] = args.lse.strides[0] = kInt64Max;
  args.dk.strides[1] = args.loss_rows.strides[0] = kInt64Min;
  const Status status = Check(args);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(HostileCall, MoreElementsThanANumberHoldsAreRefused) {
  for (const int64_t extent : {int64_t{1} << 61, int64_t{1} << 62, kInt64Max}) {
    Arena arena;
    KLLossGradArgs args = ValidKLLossGrad({}, arena);
    args.q.shape[0] = extent;
    const Status status = Check(args);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << extent;
    EXPECT_EQ(test::ArgumentOf(status), "q") << extent;
  }
}

}  // namespace
}  // namespace kindling
