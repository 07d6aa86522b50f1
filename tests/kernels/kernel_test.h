// What the kernel tests share: one test run per instruction set, and buffers with room for whole
// vectors.
#ifndef KINDLING_TESTS_KERNELS_KERNEL_TEST_H_
#define KINDLING_TESTS_KERNELS_KERNEL_TEST_H_

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kindling/runtime.h"
#include "support/isas.h"
#include "support/random.h"

namespace kindling::test {

inline constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfF = std::numeric_limits<float>::infinity();
// Counts around vectors of 4, 8 and 16 lanes, the empty one included.
inline constexpr int64_t kMaxTail = 33;
inline constexpr double kUnitRoundoff = 0x1p-24;
// What exp and ln promise, relative: 2 ulp.
inline constexpr double kElementaryError = 4 * kUnitRoundoff;

// The functions of one instruction set.
class KernelTest : public testing::TestWithParam<Isa> {
 protected:
  const KernelTable& kernels_ = *KernelsFor(GetParam());
  Random random_{RunningTest()};

  // `count` numbers, then NaN up to a multiple of 16: what a buffer named `..[count]` must have.
  std::vector<float> Buffer(int64_t count) {
    std::vector<float> buffer((count + 15) / 16 * 16, kNanF);
    for (int64_t i = 0; i < count; ++i) buffer[i] = static_cast<float>(random_.Normal());
    return buffer;
  }
};

// Instantiates the tests of `suite` for every instruction set of the processor.
#define KINDLING_FOR_EVERY_ISA(suite)              \
  INSTANTIATE_TEST_SUITE_P(                        \
      Isa, suite, testing::ValuesIn(TestedIsas()), \
      [](const testing::TestParamInfo<Isa>& info) { return std::string(IsaName(info.param)); })

// Floats of one vector.
inline int64_t LanesOf(Isa isa) { return isa == Isa::kPortable ? 4 : isa == Isa::kAvx2 ? 8 : 16; }

inline uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }

// |got - exact| in units in the last place of the exact value.
inline double UlpError(float got, double exact) {
  const int exponent = exact == 0.0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::abs(got - exact) / std::ldexp(1.0, exponent - 23);
}

}  // namespace kindling::test

#endif  // KINDLING_TESTS_KERNELS_KERNEL_TEST_H_
