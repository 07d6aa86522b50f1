#include <gtest/gtest.h>

#include <set>
#include <string>

#include "kindling/metadata.h"

namespace kindling {
namespace {

TEST(Schema, NamesEveryArgumentOnceWithADoc) {
  std::set<std::string_view> names;
  int required = 0;
  for (const ArgumentDescription& argument : DescribeMetadataOperator()) {
    EXPECT_TRUE(names.insert(argument.name).second) << argument.name;
    EXPECT_FALSE(argument.doc.empty()) << argument.name;
    EXPECT_EQ(argument.kind == "input", !argument.shape.empty()) << argument.name;
    required += argument.default_value == "required";
  }
  EXPECT_EQ(names.size(), 18u);
  EXPECT_EQ(required, 3);
}

// Defaults as text against the defaults of the struct.
TEST(Schema, DefaultsAreThoseOfMetadataArgs) {
  const MetadataArgs args;
  const auto default_of = [](std::string_view name) {
    for (const ArgumentDescription& argument : DescribeMetadataOperator()) {
      if (argument.name == name) return std::string(argument.default_value);
    }
    return std::string("no such argument");
  };
  EXPECT_EQ(default_of("batch_size"), std::to_string(args.batch_size));
  EXPECT_EQ(default_of("max_seqlen_q"), std::to_string(args.max_seqlen_q));
  EXPECT_EQ(default_of("max_seqlen_k"), std::to_string(args.max_seqlen_k));
  EXPECT_EQ(default_of("layout_q"), args.layout_q);
  EXPECT_EQ(default_of("layout_k"), args.layout_k);
  EXPECT_EQ(default_of("mask_mode"), std::to_string(args.mask_mode));
  EXPECT_EQ(default_of("cmp_ratio"), std::to_string(args.cmp_ratio));
  EXPECT_EQ(default_of("policy"), "rows");
  EXPECT_EQ(args.policy, PlanPolicy::kRows);
}

TEST(Schema, InfersTheShapeOfTheRecord) {
  static_assert(InferMetadataShape().shape[0] == 64);
  EXPECT_EQ(InferMetadataShape().dtype, DType::kInt32);
}

}  // namespace
}  // namespace kindling
