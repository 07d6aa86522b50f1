// Views: include/kindling/tensor.h and src/base/row_view.h.
#include "kindling/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/row_view.h"

namespace kindling {
namespace {

TEST(TensorView, DenseStridesAreRowMajor) {
  int32_t values[24] = {};
  const Tensor tensor(values, DType::kInt32, {2, 3, 4});
  EXPECT_EQ(tensor.rank, 3);
  EXPECT_EQ(tensor.shape, (std::array<int64_t, kMaxRank>{2, 3, 4, 0}));
  EXPECT_EQ(tensor.strides, (std::array<int64_t, kMaxRank>{12, 4, 1, 0}));
  const Tensor largest(values, DType::kInt32, {1, 2, 3, 4});
  EXPECT_EQ(largest.strides, (std::array<int64_t, kMaxRank>{24, 12, 4, 1}));
}

TEST(TensorView, WritableConvertsToReadableOnly) {
  static_assert(std::is_convertible_v<Tensor, ConstTensor>);
  static_assert(!std::is_convertible_v<ConstTensor, Tensor>);
  int32_t values[6] = {};
  const Tensor tensor(values, DType::kInt32, 2, {3, 2}, {-2, 1});
  const ConstTensor view = tensor;
  EXPECT_EQ(view.data, values);
  EXPECT_EQ(view.dtype, DType::kInt32);
  EXPECT_EQ(view.rank, 2);
  EXPECT_EQ(view.shape, tensor.shape);
  EXPECT_EQ(view.strides, tensor.strides);
}

TEST(TensorView, HasElements) {
  EXPECT_FALSE(Tensor().has_elements()) << "absent";
  EXPECT_TRUE(Tensor(nullptr, DType::kInt32, {}).has_elements()) << "a scalar has one";
  EXPECT_TRUE(Tensor(nullptr, DType::kInt32, {1, 1, 1, 1}).has_elements());
  EXPECT_FALSE(Tensor(nullptr, DType::kInt32, {0}).has_elements());
  EXPECT_FALSE(Tensor(nullptr, DType::kInt32, {0, 2, 2, 2}).has_elements());
  EXPECT_FALSE(Tensor(nullptr, DType::kInt32, {2, 2, 2, 0}).has_elements());
  Tensor deep(nullptr, DType::kInt32, {1, 1, 1, 1});
  deep.rank = kMaxRank + 3;
  EXPECT_TRUE(deep.has_elements());
}

TEST(ElementBytes, OfEveryDType) {
  EXPECT_EQ(ElementBytes(DType::kFloat32), 4);
  EXPECT_EQ(ElementBytes(DType::kFloat16), 2);
  EXPECT_EQ(ElementBytes(DType::kBFloat16), 2);
  EXPECT_EQ(ElementBytes(DType::kFloat64), 8);
  EXPECT_EQ(ElementBytes(DType::kInt32), 4);
}

TEST(RowViewOf, PackedCountsFromTheSequencesFirstRow) {
  RowView view;
  view.packed = true;
  view.batch_stride = 1000;  // of no meaning here
  view.row_stride = 7;
  EXPECT_EQ(view.RowOffset(3, 10, 2), 12 * 7);
}

TEST(RowViewOf, PaddedCountsFromTheBatch) {
  RowView view;
  view.packed = false;
  view.batch_stride = 1000;
  view.row_stride = -7;
  EXPECT_EQ(view.RowOffset(3, 10, 2), 3000 - 14);
}

TEST(RowViewOf, OffsetsAreWide) {
  RowView view;
  view.packed = true;
  view.row_stride = int64_t{1} << 31;
  EXPECT_EQ(view.RowOffset(0, 2, 1), int64_t{3} << 31);
  view.packed = false;
  view.batch_stride = int64_t{1} << 40;
  EXPECT_EQ(view.RowOffset(5, 0, 1), (int64_t{5} << 40) + (int64_t{1} << 31));
}

TEST(RowViewOf, AddressesFollowTheDType) {
  alignas(8) char bytes[64] = {};
  RowView view;
  EXPECT_FALSE(static_cast<bool>(view));
  view.data = bytes;
  EXPECT_TRUE(static_cast<bool>(view));
  view.dtype = DType::kBFloat16;
  EXPECT_EQ(view.At(5), bytes + 10);
  EXPECT_EQ(view.OutAt(5), bytes + 10);
  view.dtype = DType::kFloat64;
  EXPECT_EQ(view.At(5), bytes + 40);
}

}  // namespace
}  // namespace kindling
