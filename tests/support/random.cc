#include "support/random.h"

#include <gtest/gtest.h>

namespace kindling::test {

uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

Random::Random(std::string_view seed) : state_(Hash(seed)) {}

// Source: SplitMix64 (Steele, Lea, Flood 2014).
uint64_t Random::Bits() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int64_t Random::Below(int64_t bound) {
  return static_cast<int64_t>(Bits() % static_cast<uint64_t>(bound));
}

double Random::Uniform() { return static_cast<double>(Bits() >> 11) * 0x1p-53; }

double Random::Normal() {
  // Four uniforms have variance 1/3; sqrt(3) brings it to 1 and the range to 2 sqrt(3).
  constexpr double kSqrt3 = 1.7320508075688772;
  const uint64_t bits = Bits();
  double sum = -2.0;
  for (int part = 0; part < 4; ++part) {
    sum += (static_cast<double>((bits >> (16 * part)) & 0xffffu) + 0.5) * 0x1p-16;
  }
  return sum * kSqrt3;
}

std::string RunningTest() {
  const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
  if (info == nullptr) return "";
  return std::string(info->test_suite_name()) + "." + info->name();
}

}  // namespace kindling::test
