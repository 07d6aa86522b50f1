// main() of the test programs: as GTest's own, with the instruction set chosen before the first
// test.
#include <gtest/gtest.h>

#include <cstdio>

#include "kindling/runtime.h"
#include "support/isas.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (kindling::test::IsasAreForced()) {
    const kindling::Status status = kindling::SetIsa(kindling::test::TestedIsas().back());
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
