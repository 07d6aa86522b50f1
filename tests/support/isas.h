// Which instruction sets a test program runs on.
#ifndef KINDLING_TESTS_SUPPORT_ISAS_H_
#define KINDLING_TESTS_SUPPORT_ISAS_H_

#include <vector>

#include "kindling/runtime.h"

namespace kindling::test {

// Those that the environment names in KINDLING_TEST_ISAS, a list with spaces between; without it,
// all that the processor has. The last one is the default of the whole program. Best last, never
// empty.
const std::vector<Isa>& TestedIsas();

// Whether the environment has KINDLING_TEST_ISAS.
bool IsasAreForced();

}  // namespace kindling::test

#endif  // KINDLING_TESTS_SUPPORT_ISAS_H_
