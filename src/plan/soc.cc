// What device names say. Core counts are those that vendors and the press have published for the
// chips; docs/metadata.md names the sources.
#include <string_view>

#include "base/message.h"
#include "kindling/metadata.h"

namespace kindling {
namespace {

// Where nothing is published.
constexpr int64_t kUnknownNumCores = 25;
// One cube core is paired with two vector cores in both families.
constexpr int64_t kVectorCoresPerCore = 2;

struct Family {
  std::string_view name;
  int64_t base_block_size;
};
constexpr Family kFamilies[] = {{"Ascend950", 128}, {"Ascend910", 2048}};

struct Model {
  std::string_view prefix;
  int64_t num_cores;
};
// The first prefix that fits decides.
constexpr Model kModels[] = {
    {"Ascend910B1", 25},
    {"Ascend910B2", 24},
    {"Ascend910B3", 20},
    {"Ascend910B4", 20},
};

}  // namespace

Result<SocProfile> ParseSocVersion(std::string_view soc_version) {
  for (const Family& family : kFamilies) {
    if (!soc_version.starts_with(family.name)) continue;
    SocProfile profile;
    profile.family = family.name;
    profile.base_block_size = family.base_block_size;
    profile.num_cores = kUnknownNumCores;
    for (const Model& model : kModels) {
      if (soc_version.starts_with(model.prefix)) {
        profile.num_cores = model.num_cores;
        break;
      }
    }
    profile.num_vector_cores = kVectorCoresPerCore * profile.num_cores;
    return profile;
  }
  return InvalidArgument(
      "soc_version: expected a name that begins with \"Ascend950\" or \"Ascend910\", got \"",
      soc_version.substr(0, 64), "\"");
}

}  // namespace kindling
