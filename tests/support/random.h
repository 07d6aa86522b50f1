// Numbers that look random and are the same on every machine and in every run.
#ifndef KINDLING_TESTS_SUPPORT_RANDOM_H_
#define KINDLING_TESTS_SUPPORT_RANDOM_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace kindling::test {

// A stream of numbers that is a function of its seed text. Uses no library distribution and no
// libm, whose results differ between platforms.
class Random {
 public:
  explicit Random(std::string_view seed);

  uint64_t Bits();
  // Uniform in [0, bound). Requires: bound >= 1.
  int64_t Below(int64_t bound);
  // Uniform in [0, 1).
  double Uniform();
  // Mean 0, variance 1, bell shaped and within +-3.5.
  double Normal();

 private:
  uint64_t state_;
};

// FNV-1a.
uint64_t Hash(std::string_view text);

// "Suite.Name" of the running test, the seed of its data; "" outside of a test.
std::string RunningTest();

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_RANDOM_H_
