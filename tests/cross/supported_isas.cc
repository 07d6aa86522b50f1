// Prints the instruction sets that the library finds, best last.
#include <cstdio>

#include "kindling/runtime.h"

int main() {
  const char* separator = "";
  for (const kindling::Isa isa : kindling::SupportedIsas()) {
    std::printf("%s%s", separator, kindling::IsaName(isa).data());
    separator = " ";
  }
  std::printf("\n");
  return 0;
}
