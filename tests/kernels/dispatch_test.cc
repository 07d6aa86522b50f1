// Which instruction set runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kindling/runtime.h"
#include "support/isas.h"
#include "support/problem.h"

namespace kindling::test {
namespace {

constexpr Isa kUnknown = static_cast<Isa>(99);

TEST(Dispatch, ThePortableSetIsAlwaysThere) {
  const std::vector<Isa> isas = SupportedIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_EQ(std::set<Isa>(isas.begin(), isas.end()).size(), isas.size());
}

TEST(Dispatch, TheBestIsTheDefault) {
  if (IsasAreForced()) GTEST_SKIP() << "another default was asked for";
  EXPECT_EQ(GetIsa(), SupportedIsas().back());
}

TEST(Dispatch, EverySetHasAWholeTable) {
  for (const Isa isa : SupportedIsas()) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      const KernelTable* table = KernelsFor(isa, dtype);
      ASSERT_NE(table, nullptr);
      EXPECT_GE(table->panel_width, 1);
      EXPECT_EQ(kKeysPerChunk % table->panel_width, 0);
      const bool pairs =
          (isa == Isa::kAvx512Bf16 || isa == Isa::kAmxBf16) && dtype == DType::kBFloat16;
      EXPECT_EQ(table->values_per_word, pairs ? 2 : 1);
      EXPECT_TRUE(table->load_row && table->store_row && table->load_words &&
                  table->pack_transposed && table->pack_columns && table->transpose &&
                  table->pack_panels && table->multiply && table->weigh_scores && table->max_sum &&
                  table->merge && table->sum && table->add_exp && table->divide &&
                  table->grad_row && table->loss_terms && table->backward_scores);
    }
  }
}

TEST(Dispatch, SetIsaChoosesTheTable) {
  for (const Isa isa : SupportedIsas()) {
    const ScopedIsa forced(isa);
    EXPECT_EQ(GetIsa(), isa);
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16, DType::kFloat32}) {
      EXPECT_EQ(&CurrentKernels(dtype), KernelsFor(isa, dtype));
    }
  }
  EXPECT_EQ(GetIsa(), TestedIsas().back());
}

TEST(Dispatch, UnknownSetsAreRefused) {
  const Isa before = GetIsa();
  EXPECT_EQ(KernelsFor(kUnknown), nullptr);
  const Status status = SetIsa(kUnknown);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(status.message().starts_with("isa: expected ")) << status.message();
  EXPECT_EQ(GetIsa(), before);
}

TEST(Dispatch, SetsThatTheProcessorLacksAreRefused) {
  const std::vector<Isa> isas = SupportedIsas();
  for (const Isa isa :
       {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmxBf16}) {
    const bool supported = std::find(isas.begin(), isas.end(), isa) != isas.end();
    EXPECT_EQ(KernelsFor(isa) != nullptr, supported);
    const Isa before = GetIsa();
    EXPECT_EQ(SetIsa(isa).ok(), supported);
    EXPECT_TRUE(SetIsa(before).ok());
  }
}

TEST(Dispatch, Names) {
  EXPECT_EQ(IsaName(Isa::kPortable), "portable");
  EXPECT_EQ(IsaName(Isa::kAvx2), "avx2");
  EXPECT_EQ(IsaName(Isa::kAvx512), "avx512");
  EXPECT_EQ(IsaName(Isa::kAvx512Bf16), "avx512_bf16");
  EXPECT_EQ(IsaName(Isa::kAmxBf16), "amx_bf16");
  EXPECT_EQ(IsaName(kUnknown), "unknown");
}

}  // namespace
}  // namespace kindling::test
