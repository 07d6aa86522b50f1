// How far the resident set of this process grows. Linux only.
#ifndef KINDLING_TESTS_SUPPORT_PEAK_MEMORY_H_
#define KINDLING_TESTS_SUPPORT_PEAK_MEMORY_H_

#include <cstddef>
#include <optional>

namespace kindling::test {

class PeakMemory {
 public:
  // Forgets the peak so far.
  PeakMemory();
  // Bytes by which the greatest resident set since then exceeds what it was then. Absent where
  // the system does not say.
  std::optional<size_t> Growth() const;

 private:
  std::optional<size_t> before_;
};

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_PEAK_MEMORY_H_
