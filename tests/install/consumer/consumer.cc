// The smallest user of an installed Kindling: makes a plan and runs one operator.
#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

#include "kindling/kindling.h"

namespace {

// 25 rows over 8 cores.
bool PlanWorks() {
  kindling::MetadataArgs args;
  args.num_heads_q = 8;
  args.num_heads_k = 1;
  args.head_dim = 128;
  args.batch_size = 1;
  args.max_seqlen_q = 25;
  args.max_seqlen_k = 25;
  args.num_cores = 8;
  const kindling::Result<kindling::Metadata> metadata = kindling::MakeMetadata(args);
  if (!metadata.ok()) {
    std::printf("%s\n", metadata.status().message().c_str());
    return false;
  }
  return metadata.value().former_core_size == 4 && metadata.value().remain_core_num == 7;
}

// One row, two equal keys, unit vectors: lse = ln(2 e).
bool OperatorWorks() {
  std::vector<float> q(128, 0.0f), k(256, 0.0f);
  q[0] = k[0] = k[128] = 1.0f;
  const float w = 1.0f;
  float lse = 0.0f;
  kindling::SoftmaxLseArgs args;
  args.q = {q.data(), kindling::DType::kFloat32, {1, 1, 1, 128}};
  args.k = {k.data(), kindling::DType::kFloat32, {1, 2, 1, 128}};
  args.w = {&w, kindling::DType::kFloat32, {1, 1, 1}};
  args.lse = {&lse, kindling::DType::kFloat32, {1, 1, 1}};
  const kindling::Status status = kindling::SoftmaxLse(args);
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  return status.ok() && std::abs(lse - 1.6931472f) < 1e-6f;
}

}  // namespace

int main() {
  if (!PlanWorks() || !OperatorWorks()) return 1;
  std::printf("kindling %d.%d.%d works\n", KINDLING_VERSION_MAJOR, KINDLING_VERSION_MINOR,
              KINDLING_VERSION_PATCH);
  return 0;
}
