#include "support/peak_memory.h"

#include <fstream>
#include <string>

namespace kindling::test {
namespace {

// A line "<field>: <number> kB" of /proc/self/status.
std::optional<size_t> StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    size_t kilobytes = 0;
    if (word == field + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  return std::nullopt;
}

// Source: proc(5), /proc/pid/clear_refs: 5 sets the peak to the current resident set.
bool ForgetPeak() {
  std::ofstream clear("/proc/self/clear_refs");
  clear << "5" << std::flush;
  return clear.good();
}

}  // namespace

PeakMemory::PeakMemory() {
  if (ForgetPeak()) before_ = StatusBytes("VmHWM");
}

std::optional<size_t> PeakMemory::Growth() const {
  const std::optional<size_t> peak = StatusBytes("VmHWM");
  if (!before_ || !peak) return std::nullopt;
  return *peak > *before_ ? *peak - *before_ : 0;
}

}  // namespace kindling::test
