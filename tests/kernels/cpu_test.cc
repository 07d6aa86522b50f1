// Which instruction set is best on which processor: one test for each line of the rule.
#include "kernels/cpu.h"

#include <gtest/gtest.h>

#include <vector>

namespace kindling::test {
namespace {

constexpr Isa kPortable = Isa::kPortable;
constexpr Isa kAvx2 = Isa::kAvx2;
constexpr Isa kAvx512 = Isa::kAvx512;
constexpr Isa kAvx512Bf16 = Isa::kAvx512Bf16;
constexpr Isa kAmxBf16 = Isa::kAmxBf16;

using Isas = std::vector<Isa>;

Cpu Intel() {
  Cpu cpu;
  cpu.is_intel = true;
  return cpu;
}

TEST(RankIsas, AnyProcessorRunsThePortableSet) { EXPECT_EQ(RankIsas(Cpu()), Isas{kPortable}); }

TEST(RankIsas, Avx2) {
  for (Cpu cpu : {Cpu(), Intel()}) {
    cpu.has_avx2 = true;
    EXPECT_EQ(RankIsas(cpu), (Isas{kPortable, kAvx2}));
  }
}

TEST(RankIsas, Avx512) {
  for (Cpu cpu : {Cpu(), Intel()}) {
    cpu.has_avx2 = cpu.has_avx512 = true;
    EXPECT_EQ(RankIsas(cpu), (Isas{kPortable, kAvx2, kAvx512}));
  }
}

// Zen 4 and 5: the dot product does twice the work of an FMA in the same time.
TEST(RankIsas, DotProductsBeatFmaElsewhere) {
  Cpu cpu;
  cpu.has_avx2 = cpu.has_avx512 = cpu.has_avx512_bf16 = true;
  EXPECT_EQ(RankIsas(cpu), (Isas{kPortable, kAvx2, kAvx512, kAvx512Bf16}));
}

// Cooper Lake, and Sapphire Rapids whose tiles were denied.
TEST(RankIsas, FmaBeatsDotProductsOnIntel) {
  Cpu cpu = Intel();
  cpu.has_avx2 = cpu.has_avx512 = cpu.has_avx512_bf16 = true;
  EXPECT_EQ(RankIsas(cpu), (Isas{kPortable, kAvx2, kAvx512Bf16, kAvx512}));
}

TEST(RankIsas, TilesBeatAllElse) {
  for (Cpu cpu : {Cpu(), Intel()}) {
    cpu.has_avx2 = cpu.has_avx512 = cpu.has_avx512_bf16 = cpu.has_amx_bf16 = true;
    EXPECT_EQ(RankIsas(cpu).back(), kAmxBf16);
    EXPECT_EQ(RankIsas(cpu).size(), 5);
  }
}

TEST(ThisCpu, KeepsItsAnswer) {
  const Cpu& cpu = ThisCpu();
  EXPECT_EQ(&ThisCpu(), &cpu);
  // Every set builds on the one before.
  EXPECT_TRUE(cpu.has_avx2 || !cpu.has_avx512);
  EXPECT_TRUE(cpu.has_avx512 || !cpu.has_avx512_bf16);
  EXPECT_TRUE(cpu.has_avx512_bf16 || !cpu.has_amx_bf16);
}

}  // namespace
}  // namespace kindling::test
