// Everything: include this, or the headers one by one.
#ifndef KINDLING_KINDLING_H_
#define KINDLING_KINDLING_H_

#include "kindling/metadata.h"   // IWYU pragma: export
#include "kindling/operators.h"  // IWYU pragma: export
#include "kindling/problem.h"    // IWYU pragma: export
#include "kindling/runtime.h"    // IWYU pragma: export
#include "kindling/schema.h"     // IWYU pragma: export
#include "kindling/status.h"     // IWYU pragma: export
#include "kindling/tensor.h"     // IWYU pragma: export
#include "kindling/version.h"    // IWYU pragma: export

#endif  // KINDLING_KINDLING_H_
