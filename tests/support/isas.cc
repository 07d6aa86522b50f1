#include "support/isas.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace kindling::test {
namespace {

const char* Variable() { return std::getenv("KINDLING_TEST_ISAS"); }

std::vector<Isa> Read() {
  if (!IsasAreForced()) return SupportedIsas();
  std::vector<Isa> isas;
  std::istringstream names(Variable());
  size_t num_names = 0;
  for (std::string name; names >> name; ++num_names) {
    for (const Isa isa : SupportedIsas()) {
      if (IsaName(isa) == name) isas.push_back(isa);
    }
  }
  // A run that tests nothing, or less than it was told, must not look like one that passes.
  if (isas.empty() || isas.size() != num_names) {
    std::fprintf(stderr, "KINDLING_TEST_ISAS: expected instruction sets found here, got \"%s\"\n",
                 Variable());
    std::exit(2);
  }
  return isas;
}

}  // namespace

bool IsasAreForced() { return Variable() != nullptr; }

const std::vector<Isa>& TestedIsas() {
  static const std::vector<Isa> isas = Read();
  return isas;
}

}  // namespace kindling::test
