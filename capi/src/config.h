// What the environment says about the device that this library stands in for. It is read when it is
// needed, so that a program may change it between calls.
#ifndef KINDLING_CAPI_SRC_CONFIG_H_
#define KINDLING_CAPI_SRC_CONFIG_H_

#include <cstdint>
#include <string>

#include "kindling/status.h"

namespace kindling::acl {

struct Device {
  std::string soc_version;
  int64_t num_cores = 0;
  int64_t num_vector_cores = 0;
};

// KINDLING_SOC names the device (default "Ascend950"); KINDLING_NUM_CORES and
// KINDLING_NUM_VECTOR_CORES override its core counts, whose range is for the operators to check.
// Errors: kInvalidArgument names the variable.
Result<Device> ConfiguredDevice();

// KINDLING_NUM_THREADS and KINDLING_ISA, once, for the whole process.
Status ApplyRuntimeOptions();

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_CONFIG_H_
