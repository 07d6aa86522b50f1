#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "kindling/metadata.h"
#include "kindling/operators.h"
#include "problem/arguments.h"

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

std::string_view KindOf(const Tensor&) { return "output"; }
std::string_view KindOf(const ConstTensor&) { return "input"; }
template <class Attribute>
std::string_view KindOf(const Attribute&) {
  return "attribute";
}

// What is described of an operator, by name: kind and whether it must be given.
std::map<std::string, std::string> Described(std::string_view op) {
  std::map<std::string, std::string> described;
  for (const ArgumentDescription& argument : DescribeOperator(op)) {
    if (argument.kind == "environment") continue;
    const bool is_required = argument.default_value == "required";
    described[std::string(argument.name)] =
        std::string(argument.kind) + (is_required ? ", required" : "");
  }
  return described;
}

template <class Args>
std::map<std::string, std::string> Visited() {
  Args args;
  std::map<std::string, std::string> visited;
  const auto visit = [&visited](ArgumentName name, const auto& field) {
    visited[name.text] = std::string(KindOf(field)) + (name.is_optional ? "" : ", required");
  };
  VisitRows(args, visit);
  VisitOwn(args, visit);
  return visited;
}

// An argument that is forgotten in either list fails here.
TEST(Schema, DescribesTheArgumentsThatFrontDoorsBind) {
  EXPECT_EQ(Described("make_metadata"), Visited<MetadataArgs>());
  EXPECT_EQ(Described("softmax_lse"), Visited<SoftmaxLseArgs>());
  EXPECT_EQ(Described("kl_loss_grad"), Visited<KLLossGradArgs>());
  EXPECT_EQ(Described("attention_teacher"), Visited<AttentionL1NormArgs>());
  EXPECT_TRUE(Described("another").empty());
}

// Bytes of all fields that are visited: one that no list names leaves a gap.
template <class Args>
size_t VisitedBytes() {
  Args args;
  size_t bytes = 0;
  const auto visit = [&bytes](ArgumentName, const auto& field) { bytes += sizeof(field); };
  VisitRows(args, visit);
  VisitOwn(args, visit);
  return bytes;
}

TEST(Schema, VisitsEveryField) {
  EXPECT_EQ(VisitedBytes<SoftmaxLseArgs>(), sizeof(SoftmaxLseArgs));
  EXPECT_EQ(VisitedBytes<KLLossGradArgs>(), sizeof(KLLossGradArgs));
  EXPECT_EQ(VisitedBytes<AttentionL1NormArgs>(), sizeof(AttentionL1NormArgs));
  // Those of the environment: num_cores, num_vector_cores and, padded, policy.
  EXPECT_EQ(VisitedBytes<MetadataArgs>(), sizeof(MetadataArgs) - 3 * sizeof(int64_t));
}

TEST(Schema, RowsArePartOfEveryOperator) {
  EXPECT_EQ(OperatorNames().size(), 4u);
  for (const std::string_view op : OperatorNames()) {
    for (const ArgumentDescription& row : DescribeRows()) {
      EXPECT_TRUE(Described(op).contains(std::string(row.name))) << op << ": " << row.name;
    }
  }
}

TEST(Schema, InfersTheShapeOfTheRecord) {
  static_assert(InferMetadataShape().shape[0] == 64);
  EXPECT_EQ(InferMetadataShape().dtype, DType::kInt32);
}

}  // namespace
}  // namespace kindling
