// Prints the instruction sets that the library finds, best last; with --known, all that it has
// kernels for on some processor.
#include <cstdio>
#include <string_view>

#include "kindling/runtime.h"

namespace {

void Print(kindling::Isa isa, const char*& separator) {
  std::printf("%s%s", separator, kindling::IsaName(isa).data());
  separator = " ";
}

}  // namespace

int main(int argc, char** argv) {
  const char* separator = "";
  if (argc > 1 && std::string_view(argv[1]) == "--known") {
    for (int isa = 0; kindling::IsaName(kindling::Isa{isa}) != "unknown"; ++isa) {
      Print(kindling::Isa{isa}, separator);
    }
  } else {
    for (const kindling::Isa isa : kindling::SupportedIsas()) Print(isa, separator);
  }
  std::printf("\n");
  return 0;
}
