#include "support/owned_tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/build_kind.h"

namespace kindling::test {
namespace {

TEST(OwnedTensor, StartsUnwritten) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64, DType::kInt32}) {
    OwnedTensor tensor(dtype, {2, 3});
    for (int64_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(tensor.Unwritten(i));
      EXPECT_EQ(std::isnan(tensor.Get(i)), dtype != DType::kInt32);
    }
    tensor.Set(4, 7.0);
    EXPECT_FALSE(tensor.Unwritten(4));
    EXPECT_TRUE(tensor.Unwritten(5));
  }
}

TEST(OwnedTensor, ValuesAreNamedByRowMajorIndexInAnySpread) {
  for (const Spread spread :
       {Spread::kDense, Spread::kGaps, Spread::kReversed, Spread::kTransposed}) {
    OwnedTensor tensor(DType::kFloat32, {2, 3, 4}, spread);
    for (int64_t i = 0; i < 24; ++i) tensor.Set(i, static_cast<double>(i));
    const ConstTensor view = tensor.view();
    for (int64_t a = 0; a < 2; ++a) {
      for (int64_t b = 0; b < 3; ++b) {
        for (int64_t c = 0; c < 4; ++c) {
          const int64_t at = a * view.strides[0] + b * view.strides[1] + c * view.strides[2];
          EXPECT_EQ(static_cast<const float*>(view.data)[at],
                    static_cast<float>((a * 3 + b) * 4 + c));
        }
      }
    }
    EXPECT_TRUE(tensor.GuardsIntact());
    EXPECT_EQ(tensor.SpreadAs(Spread::kDense).Get(17), 17.0);
  }
}

TEST(OwnedTensor, SpreadsAreWhatTheirNamesSay) {
  const auto strides = [](Spread spread) {
    return OwnedTensor(DType::kFloat32, {2, 3, 4}, spread).view().strides;
  };
  EXPECT_EQ(strides(Spread::kDense)[0], 12);
  EXPECT_GT(strides(Spread::kGaps)[0], 12);
  EXPECT_EQ(strides(Spread::kGaps)[2], 1);
  EXPECT_EQ(strides(Spread::kReversed)[2], -1);
  EXPECT_EQ(strides(Spread::kTransposed)[0], 1);
  EXPECT_GT(strides(Spread::kTransposed)[2], 3);
}

TEST(OwnedTensor, NoticesWritesOutside) {
  for (const int64_t at : {-1, 5, -50, 60}) {
    OwnedTensor tensor(DType::kFloat32, {5});
    auto* element = static_cast<volatile float*>(tensor.view().data) + at;
    if (kUnderAsan) {
      // Reads too.
      EXPECT_DEATH(static_cast<void>(*element), "use-after-poison") << at;
    } else {
      *element = 0.0f;
      EXPECT_FALSE(tensor.GuardsIntact()) << at;
    }
  }
}

TEST(OwnedTensor, NoticesWritesIntoGaps) {
  const OwnedTensor before(DType::kFloat32, {2, 2}, Spread::kGaps);
  OwnedTensor after = before;
  EXPECT_TRUE(after.SameMemory(before));
  static_cast<float*>(after.view().data)[2] = 0.0f;
  EXPECT_FALSE(after.SameMemory(before));
}

TEST(OwnedTensor, RoundsToNearestEven) {
  OwnedTensor tensor(DType::kBFloat16, {1});
  tensor.Set(0, 1.0 + 0x1p-8);
  EXPECT_EQ(tensor.Get(0), 1.0);
  tensor.Set(0, 1.0 + 0x3p-8);
  EXPECT_EQ(tensor.Get(0), 1.0 + 0x1p-6);
  EXPECT_EQ(tensor.ConvertedTo(DType::kFloat64).Get(0), 1.0 + 0x1p-6);
}

TEST(OwnedTensor, AbsentAndEmptyAreDifferent) {
  EXPECT_EQ(OwnedTensor().view().rank, -1);
  const OwnedTensor empty(DType::kFloat32, {3, 0});
  EXPECT_EQ(empty.view().rank, 2);
  EXPECT_EQ(empty.size(), 0);
  EXPECT_TRUE(empty.GuardsIntact());
}

TEST(OwnedTensor, IndexString) {
  EXPECT_EQ(OwnedTensor(DType::kFloat32, {2, 3, 4}).IndexString(17), "[1, 1, 1]");
  EXPECT_EQ(OwnedTensor(DType::kFloat32, {9}).IndexString(7), "[7]");
}

}  // namespace
}  // namespace kindling::test
