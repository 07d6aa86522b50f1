#include "base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "support/build_kind.h"

namespace kindling {
namespace {

TEST(AlignedBuffer, IsEmptyByDefault) {
  EXPECT_EQ(AlignedBuffer().data(), nullptr);
  EXPECT_EQ(AlignedBuffer().bytes(), 0u);
  EXPECT_EQ(AlignedBuffer::Allocate(0).data(), nullptr);
  EXPECT_EQ(AlignedBuffer::Allocate(0).bytes(), 0u);
}

TEST(AlignedBuffer, IsAlignedWritableAndWholeLines) {
  for (const size_t bytes : {1, 2, 63, 64, 65, 127, 128, 4095, 4097, 1 << 20}) {
    const AlignedBuffer buffer = AlignedBuffer::Allocate(bytes);
    ASSERT_NE(buffer.data(), nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kAlignment, 0u) << bytes;
    EXPECT_GE(buffer.bytes(), bytes);
    EXPECT_LT(buffer.bytes(), bytes + kAlignment);
    EXPECT_EQ(buffer.bytes() % kAlignment, 0u);
    std::memset(buffer.data(), 0x5a, buffer.bytes());
  }
}

// Rounding a size near SIZE_MAX up would wrap around to a small one.
TEST(AlignedBuffer, RefusesSizesThatWouldWrap) {
  for (const size_t below : {size_t{0}, size_t{1}, kAlignment - 2, kAlignment - 1}) {
    EXPECT_EQ(AlignedBuffer::Allocate(SIZE_MAX - below).data(), nullptr) << below;
    EXPECT_EQ(AlignedBuffer::Allocate(SIZE_MAX - below).bytes(), 0u) << below;
  }
}

TEST(AlignedBuffer, IsEmptyWhereTheHostHasNoMemory) {
  if (test::kSanitized) GTEST_SKIP() << "the sanitizer's allocator does not return null";
  for (const size_t bytes : {SIZE_MAX - kAlignment, SIZE_MAX / 2}) {
    const AlignedBuffer buffer = AlignedBuffer::Allocate(bytes);
    EXPECT_EQ(buffer.data(), nullptr) << bytes;
    EXPECT_EQ(buffer.bytes(), 0u) << bytes;
  }
}

TEST(AlignedBuffer, MovesItsMemory) {
  static_assert(!std::is_copy_constructible_v<AlignedBuffer>);
  static_assert(std::is_nothrow_move_constructible_v<AlignedBuffer>);
  AlignedBuffer first = AlignedBuffer::Allocate(100);
  std::byte* const data = first.data();
  AlignedBuffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.bytes(), 128u);
  AlignedBuffer third = AlignedBuffer::Allocate(10);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.bytes(), 128u);
}

}  // namespace
}  // namespace kindling
