// The compatible plan takes nothing from the heap. A program of its own, because it replaces the
// global operator new by one that counts.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "kindling/metadata.h"
#include "problem/lengths_case.h"

namespace {

std::atomic<int64_t> num_allocations{0};

void* Count(size_t bytes) {
  ++num_allocations;
  if (void* memory = std::malloc(bytes > 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// The array and nothrow forms of the library come down to these.
void* operator new(size_t bytes) { return Count(bytes); }
void* operator new[](size_t bytes) { return Count(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace kindling {
namespace {

using test::Form;

TEST(CountingNew, Counts) {
  const int64_t before = num_allocations;
  const std::vector<int> some(1000);
  const std::string text(100, 'x');
  EXPECT_EQ(num_allocations - before, 2);
}

TEST(MakeMetadataOf, AllocatesNothing) {
  for (const Form form_q : {Form::kPacked, Form::kPackedUsed, Form::kPadded, Form::kUniform}) {
    for (const Form form_k : {Form::kPacked, Form::kPackedUsed, Form::kPadded, Form::kUniform}) {
      const std::vector<int32_t> used(500, 7);
      test::LengthsCase lengths = test::MakeCase(form_q, form_k, used, used);
      lengths.mask_mode = 3;
      lengths.cmp_ratio = 2;
      lengths.residual.assign(500, 1);
      const MetadataArgs args = lengths.Args();
      int32_t words[kMetadataWords];
      const Tensor out(words, DType::kInt32, {kMetadataWords});

      const int64_t before = num_allocations;
      const Result<Metadata> record = MakeMetadata(args);
      const Status status = MakeMetadata(args, out);
      const int64_t after = num_allocations;
      EXPECT_EQ(after - before, 0) << static_cast<int>(form_q) << " " << static_cast<int>(form_k);
      ASSERT_TRUE(record.ok() && status.ok());
      EXPECT_EQ(record.value().total_size, 3500);
      EXPECT_EQ(words[0], 3500);
    }
  }
}

TEST(MakeMetadataOf, AllocatesNothingToReadStridedLengths) {
  const std::vector<int32_t> memory = {9, -1, 4, -1, 4, -1, 0};
  test::LengthsCase lengths;
  MetadataArgs args = lengths.Args();
  args.cu_seqlens_q = args.cu_seqlens_k = ConstTensor(&memory.back(), DType::kInt32, 1, {4}, {-2});
  const int64_t before = num_allocations;
  const Result<Metadata> record = MakeMetadata(args);
  EXPECT_EQ(num_allocations - before, 0);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record.value().total_size, 9);
  EXPECT_EQ(record.value().max_seq_k, 5);
}

}  // namespace
}  // namespace kindling
