#include <gtest/gtest.h>

#include "kindling/metadata.h"

namespace kindling {
namespace {

TEST(SocProfile, KnowsFamilies) {
  const SocProfile a950 = ParseSocVersion("Ascend950PR_9589").value();
  EXPECT_EQ(a950.family, "Ascend950");
  EXPECT_EQ(a950.base_block_size, 128);
  EXPECT_EQ(a950.num_cores, 25);  // nothing published
  EXPECT_EQ(a950.num_vector_cores, 50);
  const SocProfile a910 = ParseSocVersion("Ascend910B3").value();
  EXPECT_EQ(a910.family, "Ascend910");
  EXPECT_EQ(a910.base_block_size, 2048);
  EXPECT_EQ(a910.num_cores, 20);
  EXPECT_EQ(a910.num_vector_cores, 40);
  EXPECT_EQ(ParseSocVersion("Ascend910B2C").value().num_cores, 24);
  EXPECT_EQ(ParseSocVersion("Ascend910_9391").value().num_cores, 25);
}

TEST(SocProfile, RefusesOtherNames) {
  for (const char* name : {"", "Ascend", "ascend950", "Ascend310P3", " Ascend910B"}) {
    const Status status = ParseSocVersion(name).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message().rfind("soc_version: expected", 0), 0u) << status.message();
  }
}

}  // namespace
}  // namespace kindling
