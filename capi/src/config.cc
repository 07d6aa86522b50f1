#include "config.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

#include "base/message.h"
#include "kindling/metadata.h"
#include "kindling/runtime.h"

namespace kindling::acl {
namespace {

constexpr const char* kDefaultSoc = "Ascend950";

// Empty where the variable is not set.
std::string_view Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Leaves `value` alone where the variable is not set.
Status ReadCount(const char* name, int64_t& value) {
  const std::string_view text = Variable(name);
  if (text.empty()) return Status();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    return InvalidArgument(name, ": expected an integer, got \"", text.substr(0, 32), "\"");
  }
  value = number;
  return Status();
}

}  // namespace

Result<Device> ConfiguredDevice() {
  Device device;
  device.soc_version = Variable("KINDLING_SOC").empty() ? kDefaultSoc : Variable("KINDLING_SOC");
  const Result<SocProfile> profile = ParseSocVersion(device.soc_version);
  if (!profile.ok()) {
    return Status(profile.status().code(), "KINDLING_SOC: " + profile.status().message());
  }
  device.num_cores = profile.value().num_cores;
  device.num_vector_cores = profile.value().num_vector_cores;
  KINDLING_RETURN_IF_ERROR(ReadCount("KINDLING_NUM_CORES", device.num_cores));
  KINDLING_RETURN_IF_ERROR(ReadCount("KINDLING_NUM_VECTOR_CORES", device.num_vector_cores));
  return device;
}

Status ApplyRuntimeOptions() {
  int64_t num_threads = 0;
  KINDLING_RETURN_IF_ERROR(ReadCount("KINDLING_NUM_THREADS", num_threads));
  if (!Variable("KINDLING_NUM_THREADS").empty()) {
    const Status status = SetNumThreads(num_threads);
    if (!status.ok()) return Status(status.code(), "KINDLING_NUM_THREADS: " + status.message());
  }
  const std::string_view wanted = Variable("KINDLING_ISA");
  if (wanted.empty()) return Status();
  for (const Isa isa : SupportedIsas()) {
    if (IsaName(isa) == wanted) return SetIsa(isa);
  }
  return InvalidArgument("KINDLING_ISA: expected an instruction set of this processor, got \"",
                         wanted.substr(0, 32), "\"");
}

}  // namespace kindling::acl
