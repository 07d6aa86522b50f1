#include "base/message.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>

#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling {
namespace {

TEST(Concat, JoinsTextAndIntegers) {
  EXPECT_EQ(Concat(), "");
  EXPECT_EQ(
      Concat("cu_seqlens_q", "[", 3, "]: expected >= ", std::string_view("x"), std::string("y")),
      "cu_seqlens_q[3]: expected >= xy");
  EXPECT_EQ(Concat(std::numeric_limits<int64_t>::min(), " ", std::numeric_limits<uint64_t>::max()),
            "-9223372036854775808 18446744073709551615");
}

TEST(StatusMakers, CarryCodeAndMessage) {
  const Status argument = InvalidArgument("w: got ", 7);
  EXPECT_FALSE(argument.ok());
  EXPECT_EQ(argument.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(argument.message(), "w: got 7");
  const Status dtype = InvalidDtype("k: got ", DTypeName(DType::kInt32));
  EXPECT_EQ(dtype.code(), StatusCode::kInvalidDtype);
  EXPECT_EQ(dtype.message(), "k: got int32");
}

TEST(StatusMakers, KeepTheArgumentAsData) {
  EXPECT_EQ(InvalidArgument("seqused_q", "[", 3, "]: expected >= 0, got ", -1).argument(),
            "seqused_q");
  EXPECT_EQ(InvalidArgument("w: expected a, got [b]: c").argument(), "w");
  EXPECT_EQ(InvalidDtype("k: expected dtype int32, got ", DTypeName(DType::kFloat16)).argument(),
            "k");
  EXPECT_EQ(InvalidArgument("k.shape[0]: expected 2, got 3").argument(), "k");
  EXPECT_EQ(InvalidArgument("no argument").argument(), "");
  EXPECT_EQ(Status().argument(), "");
}

TEST(StatusMakers, LeaveRoomForADtypeWithoutAName) {
  const Status unnamed = InvalidDtype("k: expected dtype int32, got ", DTypeName(DType::kOther));
  EXPECT_TRUE(unnamed.lacks_dtype_name());
  EXPECT_EQ(unnamed.message(), "k: expected dtype int32, got another dtype");
  EXPECT_EQ(unnamed.MessageWithDtype("int64"), "k: expected dtype int32, got int64");
  const Status named = InvalidDtype("k: expected dtype int32, got ", DTypeName(DType::kFloat16));
  EXPECT_FALSE(named.lacks_dtype_name());
  EXPECT_EQ(named.MessageWithDtype("int64"), named.message());
}

TEST(ReturnIfError, ReturnsFailuresOnly) {
  const auto pass_on = [](const Status& status) {
    KINDLING_RETURN_IF_ERROR(status);
    return InvalidArgument("reached the end");
  };
  EXPECT_EQ(pass_on(Status()).message(), "reached the end");
  EXPECT_EQ(pass_on(InvalidDtype("stopped")).message(), "stopped");
  EXPECT_EQ(pass_on(InvalidDtype("stopped")).code(), StatusCode::kInvalidDtype);
}

TEST(ResultOf, HoldsAValueOrAStatus) {
  Result<std::string> value = std::string("here");
  ASSERT_TRUE(value.ok());
  EXPECT_TRUE(value.status().ok());
  EXPECT_EQ(value.value(), "here");
  EXPECT_EQ(std::move(value).value(), "here");

  const Result<std::string> failure = InvalidArgument("q: no");
  EXPECT_FALSE(failure.ok());
  EXPECT_EQ(failure.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(failure.status().message(), "q: no");
}

TEST(DTypeName, IsDifferentForEach) {
  std::set<std::string_view> names;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                            DType::kInt32, DType::kOther}) {
    EXPECT_FALSE(DTypeName(dtype).empty());
    names.insert(DTypeName(dtype));
  }
  EXPECT_EQ(names.size(), 6u);
  EXPECT_EQ(DTypeName(DType::kBFloat16), "bfloat16");
  EXPECT_EQ(DTypeName(DType::kFloat16), "float16");
  EXPECT_EQ(DTypeName(static_cast<DType>(99)), DTypeName(DType::kOther));
  for (const NamedDType& named : kDTypes) EXPECT_EQ(DTypeOfName(named.name), named.dtype);
  EXPECT_EQ(DTypeOfName("int64"), DType::kOther);
}

TEST(ShapeString, LooksLikePython) {
  EXPECT_EQ(ShapeString(ConstTensor(nullptr, DType::kFloat32, {})), "()");
  EXPECT_EQ(ShapeString(ConstTensor(nullptr, DType::kFloat32, {7})), "(7,)");
  EXPECT_EQ(ShapeString(ConstTensor(nullptr, DType::kFloat32, {2, 0})), "(2, 0)");
  EXPECT_EQ(ShapeString(ConstTensor(nullptr, DType::kFloat32, {1, 2, 3, 4})), "(1, 2, 3, 4)");
}

TEST(ShapeString, AboveTheLargestRankEndsInDots) {
  ConstTensor tensor(nullptr, DType::kFloat32, {1, 2, 3, 4});
  for (const int32_t rank : {kMaxRank + 1, kMaxRank + 2, std::numeric_limits<int32_t>::max()}) {
    tensor.rank = rank;
    EXPECT_EQ(ShapeString(tensor), "(1, 2, 3, 4, ...)");
  }
}

}  // namespace
}  // namespace kindling
