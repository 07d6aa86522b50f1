// Memory beyond inputs and outputs: what the workspace call says, and what a call makes resident.
//
//   K D (2 pack + 4)  +  threads * 2 MiB * max(1, D/128) * max(1, N1/256)  +  1 MiB
//
// with K the keys of all sequences, each rounded up to 64, and pack = 2 bytes for bf16, else 4.
// Source: the goals table of docs/performance.md.
#include "support/peak_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kindling/operators.h"
#include "support/build_kind.h"

namespace kindling::test {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};

// Sequences without a mask in TND.
struct Shape {
  DType dtype;
  int64_t num_heads;
  int64_t head_dim;
  std::vector<int32_t> num_rows;
  std::vector<int32_t> num_keys;
};

int64_t Bound(const Shape& shape, int64_t num_threads) {
  int64_t num_keys = 0;
  for (const int32_t keys : shape.num_keys) num_keys += (keys + 63) / 64 * 64;
  const int64_t pack = shape.dtype == DType::kBFloat16 ? 2 : 4;
  const double of_thread = 2.0 * kMiB * std::max(1.0, static_cast<double>(shape.head_dim) / 128) *
                           std::max(1.0, static_cast<double>(shape.num_heads) / 256);
  return num_keys * shape.head_dim * (2 * pack + 4) +
         static_cast<int64_t>(static_cast<double>(num_threads) * of_thread) + kMiB;
}

std::string Name(const Shape& shape, int64_t num_threads) {
  const char* dtype = shape.dtype == DType::kBFloat16  ? "bf16"
                      : shape.dtype == DType::kFloat16 ? "fp16"
                                                       : "fp32";
  return std::string(dtype) + " heads=" + std::to_string(shape.num_heads) +
         " dim=" + std::to_string(shape.head_dim) +
         " sequences=" + std::to_string(shape.num_rows.size()) +
         " rows=" + std::to_string(shape.num_rows[0]) +
         " keys=" + std::to_string(shape.num_keys[0]) + " threads=" + std::to_string(num_threads);
}

// One call of both operators. `memory` is where the tensors lie; null: nowhere, which is enough to
// ask for the size of a workspace.
class Call {
 public:
  explicit Call(const Shape& shape) : cu_rows_{0}, cu_keys_{0} {
    for (const int32_t rows : shape.num_rows) cu_rows_.push_back(cu_rows_.back() + rows);
    for (const int32_t keys : shape.num_keys) cu_keys_.push_back(cu_keys_.back() + keys);
    const int64_t t = cu_rows_.back();
    const int64_t s = cu_keys_.back();
    const int64_t columns = *std::max_element(shape.num_keys.begin(), shape.num_keys.end());
    const int64_t h = shape.num_heads;
    const int64_t d = shape.head_dim;
    const auto size = static_cast<int64_t>(cu_rows_.size());
    args.layout_q = args.layout_k = "TND";
    args.cu_seqlens_q = ConstTensor(cu_rows_.data(), DType::kInt32, {size});
    args.cu_seqlens_k = ConstTensor(cu_keys_.data(), DType::kInt32, {size});
    args.q = Place(shape.dtype, {t, h, d});
    args.k = Place(shape.dtype, {s, 1, d});
    args.w = Place(DType::kFloat32, {t, h});
    args.p = Place(DType::kFloat32, {t, 1, columns});
    args.lse = Place(DType::kFloat32, {1, t});
    args.dq = Place(shape.dtype, {t, h, d});
    args.dk = Place(shape.dtype, {s, 1, d});
    args.dw = Place(DType::kFloat32, {t, h});
    args.loss_rows = Place(DType::kFloat32, {1, t});
  }

  SoftmaxLseArgs LseArgs() const {
    SoftmaxLseArgs lse_args;
    static_cast<SequenceArgs&>(lse_args) = args;
    lse_args.q = args.q;
    lse_args.k = args.k;
    lse_args.w = args.w;
    lse_args.lse = args.loss_rows;
    return lse_args;
  }

  // Gives every tensor memory that is resident and holds zeros.
  void MakeResident() {
    memory_.assign(end_ - kNowhere, std::byte{0});
    for (ConstTensor* input : {&args.q, &args.k, &args.w, &args.p, &args.lse}) {
      input->data = Moved(input->data);
    }
    for (Tensor* output : {&args.dq, &args.dk, &args.dw, &args.loss_rows}) {
      output->data = Moved(output->data);
    }
  }

  KLLossGradArgs args;

 private:
  // Where tensors lie before they have memory: any address that is not null.
  static constexpr uintptr_t kNowhere = 1 << 12;

  Tensor Place(DType dtype, std::initializer_list<int64_t> extents) {
    int64_t bytes = dtype == DType::kFloat32 ? 4 : 2;
    for (const int64_t extent : extents) bytes *= extent;
    void* begin = reinterpret_cast<void*>(end_);
    end_ += (static_cast<uintptr_t>(bytes) + 63) / 64 * 64;
    return Tensor(begin, dtype, extents);
  }
  std::byte* Moved(const void* nowhere) {
    return memory_.data() + (reinterpret_cast<uintptr_t>(nowhere) - kNowhere);
  }

  std::vector<int32_t> cu_rows_, cu_keys_;
  uintptr_t end_ = kNowhere;
  std::vector<std::byte> memory_;
};

void ExpectWithinBound(const char* what, int64_t bytes, const Shape& shape, int64_t num_threads) {
  const int64_t bound = Bound(shape, num_threads);
  EXPECT_LE(bytes, bound) << what << ": " << static_cast<double>(bytes) / kMiB << " MiB of "
                          << static_cast<double>(bound) / kMiB << ", " << Name(shape, num_threads);
}

std::vector<Shape> ShapesOf(std::vector<int32_t> num_rows, std::vector<int32_t> num_keys) {
  std::vector<Shape> shapes;
  for (const DType dtype : kDTypes) {
    for (const int64_t head_dim : {64, 128, 256}) {
      for (const int64_t num_heads : {8, 64, 300}) {
        shapes.push_back({dtype, num_heads, head_dim, num_rows, num_keys});
      }
    }
  }
  return shapes;
}

TEST(PeakMemory, TheWorkspaceIsWithinTheBound) {
  const std::vector<int32_t> many(1000, 70);
  const std::vector<Shape> lists[] = {
      ShapesOf({100'000}, {100'000}), ShapesOf({1}, {100'000}), ShapesOf({16}, {100'000}),
      ShapesOf({64}, {1000}),         ShapesOf({1000}, {300}),  ShapesOf(many, many),
  };
  for (const std::vector<Shape>& list : lists) {
    for (const Shape& shape : list) {
      const Call call(shape);
      for (const int64_t num_threads : {1, 4, 64}) {
        const Result<size_t> grad = KLLossGradWorkspaceBytes(call.args, num_threads);
        ASSERT_TRUE(grad.ok()) << grad.status().message();
        ExpectWithinBound("grad", static_cast<int64_t>(grad.value()), shape, num_threads);
        const Result<size_t> lse = SoftmaxLseWorkspaceBytes(call.LseArgs(), num_threads);
        ASSERT_TRUE(lse.ok()) << lse.status().message();
        ExpectWithinBound("lse", static_cast<int64_t>(lse.value()), shape, num_threads);
      }
    }
  }
}

// Runs a call in a workspace of pages that nobody has touched, and returns by how much the resident
// set grew.
template <class Run>
std::optional<size_t> Growth(size_t workspace_bytes, int64_t num_threads, const Run& run) {
  void* workspace =
      mmap(nullptr, workspace_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (workspace == MAP_FAILED) return std::nullopt;
  const PeakMemory memory;
  const Status status = run({num_threads, workspace, workspace_bytes});
  const std::optional<size_t> growth = memory.Growth();
  EXPECT_TRUE(status.ok()) << status.message();
  munmap(workspace, workspace_bytes);
  return growth;
}

TEST(PeakMemory, WhatACallMakesResidentIsWithinTheBound) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
  if (!PeakMemory().Growth()) GTEST_SKIP() << "the system does not say what is resident";
  for (Shape& shape : ShapesOf({0}, {1000})) {
    // Four blocks of 256 pairs: one for every worker.
    shape.num_rows = {static_cast<int32_t>(4 * std::max<int64_t>(1, 256 / shape.num_heads))};
    Call call(shape);
    call.MakeResident();
    for (const int64_t num_threads : {1, 4}) {
      const size_t bytes = KLLossGradWorkspaceBytes(call.args, num_threads).value();
      const auto grad = Growth(bytes, num_threads, [&](const RunOptions& options) {
        return KLLossGrad(call.args, options);
      });
      ASSERT_TRUE(grad.has_value());
      ExpectWithinBound("grad", static_cast<int64_t>(*grad), shape, num_threads);
      const SoftmaxLseArgs lse_args = call.LseArgs();
      const size_t lse_bytes = SoftmaxLseWorkspaceBytes(lse_args, num_threads).value();
      const auto lse = Growth(lse_bytes, num_threads, [&](const RunOptions& options) {
        return SoftmaxLse(lse_args, options);
      });
      ASSERT_TRUE(lse.has_value());
      ExpectWithinBound("lse", static_cast<int64_t>(*lse), shape, num_threads);
    }
  }
}

}  // namespace
}  // namespace kindling::test
