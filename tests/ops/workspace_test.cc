// A caller's workspace: exactly the bytes that were asked for suffice, and what is in them, or
// whose they are, changes no bit.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/isas.h"
#include "support/problem.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

constexpr int64_t kThreadCounts[] = {1, 2, 7};

// One operator on one problem, for all of which the workspace has the same rules.
struct Operator {
  std::string name;
  std::function<Result<size_t>(int64_t num_threads)> workspace_bytes;
  // Runs and returns the status; the results are kept in whoever made this.
  std::function<Status(const RunOptions& options)> run;
  // Whether the last run gave what a run without a workspace gives.
  std::function<testing::AssertionResult()> same;
};

// The three operators on the tensors of one case. Not to be moved: the operators point here.
class Operators {
 public:
  explicit Operators(const Case& spec)
      : indexer_(spec),
        teacher_(spec, Teacher::Lse::kAbsent),
        lse_(indexer_, {}),
        grad_(indexer_, {}),
        p_(TeacherOutput(teacher_)),
        want_lse_(RunSoftmaxLse(indexer_)),
        want_grad_(RunKLLossGrad(indexer_)),
        want_p_(RunAttentionL1Norm(teacher_)) {
    list = {{"SoftmaxLse",
             [this](int64_t n) { return SoftmaxLseWorkspaceBytes(MakeArgs(indexer_, lse_), n); },
             [this](const RunOptions& options) {
               lse_ = LseOutputs(indexer_, {});
               return SoftmaxLse(MakeArgs(indexer_, lse_), options);
             },
             [this] { return SameBits(lse_, want_lse_, indexer_.spec); }},
            {"KLLossGrad",
             [this](int64_t n) { return KLLossGradWorkspaceBytes(MakeArgs(indexer_, grad_), n); },
             [this](const RunOptions& options) {
               grad_ = GradOutputs(indexer_, {});
               return KLLossGrad(MakeArgs(indexer_, grad_), options);
             },
             [this] { return SameBits(grad_, want_grad_, indexer_.spec); }},
            {"AttentionL1Norm",
             [this](int64_t n) { return AttentionL1NormWorkspaceBytes(MakeArgs(teacher_, p_), n); },
             [this](const RunOptions& options) {
               p_ = TeacherOutput(teacher_);
               return AttentionL1Norm(MakeArgs(teacher_, p_), options);
             },
             [this] { return SameBits("p", p_, want_p_, teacher_.spec); }}};
  }
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  // Whether all outputs are as before any run.
  bool Untouched() const {
    for (const OwnedTensor* output : {&lse_.lse, &lse_.loss_rows, &grad_.dq, &grad_.dk, &grad_.dw,
                                      &grad_.softmax_out, &grad_.loss_rows, &p_}) {
      for (int64_t i = 0; i < output->size(); ++i) {
        if (!output->Unwritten(i)) return false;
      }
    }
    return true;
  }

  std::vector<Operator> list;

 private:
  Indexer indexer_;
  Teacher teacher_;
  LseOutputs lse_;
  GradOutputs grad_;
  OwnedTensor p_;
  LseOutputs want_lse_;
  GradOutputs want_grad_;
  OwnedTensor want_p_;
};

Case RaggedCase() {
  Case spec;
  spec.dtype = DType::kBFloat16;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 8;
  spec.num_key_heads = 2;
  spec.head_dim = 20;
  spec.num_rows = {70, 3, 0, 45};
  spec.num_keys = {300, 5, 7, 257};
  return spec;
}

// Runs in a workspace of exactly `bytes` between guards, first full of NaN, then of what the run
// left.
testing::AssertionResult RunsInside(const Operator& op, size_t bytes, int64_t num_threads) {
  GuardedBytes workspace(bytes, 0);
  for (int run = 0; run < 2; ++run) {
    const Status status = op.run({num_threads, workspace.data(), bytes});
    if (!status.ok()) return testing::AssertionFailure() << op.name << ": " << status.message();
    if (!workspace.GuardsIntact()) {
      return testing::AssertionFailure() << op.name << ": wrote outside of its workspace";
    }
    const testing::AssertionResult same = op.same();
    if (!same) return testing::AssertionResult(same) << "\n  " << op.name << ", run " << run;
  }
  return testing::AssertionSuccess();
}

TEST(Workspace, ExactlyTheBytesAskedForSuffice) {
  for (const Isa isa : TestedIsas()) {
    const ScopedIsa forced(isa);
    Operators operators(RaggedCase());
    for (const Operator& op : operators.list) {
      for (const int64_t num_threads : kThreadCounts) {
        const Result<size_t> bytes = op.workspace_bytes(num_threads);
        ASSERT_TRUE(bytes.ok()) << bytes.status().message();
        EXPECT_TRUE(RunsInside(op, bytes.value(), num_threads)) << IsaName(isa);
      }
    }
  }
}

TEST(Workspace, ExactlyTheBytesAskedForSufficeAtTheEdges) {
  ForEachCase(EdgeCases(), [](const Case& spec) {
    Operators operators(spec);
    for (const Operator& op : operators.list) {
      const Result<size_t> bytes = op.workspace_bytes(2);
      if (!bytes.ok()) return testing::AssertionFailure() << bytes.status().message();
      const testing::AssertionResult inside = RunsInside(op, bytes.value(), 2);
      if (!inside) return testing::AssertionResult(inside);
    }
    return testing::AssertionSuccess();
  });
}

TEST(Workspace, MoreIsFine) {
  Operators operators(RaggedCase());
  for (const Operator& op : operators.list) {
    EXPECT_TRUE(RunsInside(op, op.workspace_bytes(2).value() + 1000, 2));
  }
}

TEST(Workspace, OneByteLessIsRefused) {
  Operators operators(RaggedCase());
  for (const Operator& op : operators.list) {
    for (const int64_t num_threads : kThreadCounts) {
      const size_t bytes = op.workspace_bytes(num_threads).value();
      ASSERT_GT(bytes, 0u);
      GuardedBytes workspace(bytes, 0);
      const Status status = op.run({num_threads, workspace.data(), bytes - 1});
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << op.name;
      EXPECT_TRUE(
          status.message().starts_with("workspace_bytes: expected >= " + std::to_string(bytes)))
          << status.message();
      EXPECT_TRUE(operators.Untouched());
    }
  }
}

TEST(Workspace, AMisalignedOneIsRefused) {
  Operators operators(RaggedCase());
  for (const Operator& op : operators.list) {
    const size_t bytes = op.workspace_bytes(2).value();
    for (const size_t misalignment : {1, 4, 32, 63}) {
      GuardedBytes workspace(bytes, misalignment);
      const Status status = op.run({2, workspace.data(), bytes});
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << op.name;
      EXPECT_TRUE(status.message().starts_with("workspace: ")) << status.message();
      EXPECT_TRUE(operators.Untouched());
    }
  }
}

// A size without a pointer asks for the library's own.
TEST(Workspace, NoPointerMeansTheCache) {
  Operators operators(RaggedCase());
  for (const Operator& op : operators.list) {
    EXPECT_TRUE(op.run({2, nullptr, 1}).ok());
    EXPECT_TRUE(op.same());
  }
}

TEST(Workspace, GrowsWithThreadsUpToTheWorkThereIs) {
  Operators operators(RaggedCase());
  for (const Operator& op : operators.list) {
    const size_t one = op.workspace_bytes(1).value();
    EXPECT_LT(one, op.workspace_bytes(2).value()) << op.name;
    EXPECT_EQ(op.workspace_bytes(1000).value(), op.workspace_bytes(1024).value()) << op.name;
    // The default is what GetNumThreads says.
    EXPECT_EQ(op.workspace_bytes(0).value(), op.workspace_bytes(GetNumThreads()).value());
  }
}

TEST(Workspace, TheSizeOfABadCallIsItsError) {
  const Indexer problem(RaggedCase());
  LseOutputs outputs(problem, {});
  SoftmaxLseArgs args = MakeArgs(problem, outputs);
  args.w.dtype = DType::kFloat16;
  const Status status = SoftmaxLseWorkspaceBytes(args, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidDtype);
  EXPECT_EQ(status.message(), SoftmaxLse(args).message());
}

// A call of which only the descriptors exist: all that the size of a workspace depends on.
size_t WorkspaceBytesOf(int32_t num_rows, int32_t num_keys, int64_t num_heads, int64_t width) {
  const int32_t cu_seqlens_q[] = {0, num_rows};
  const int32_t cu_seqlens_k[] = {0, num_keys};
  uintptr_t address = 0;
  const auto somewhere = [&](std::initializer_list<int64_t> extents) {
    address += uintptr_t{1} << 36;
    return Tensor(reinterpret_cast<void*>(address), DType::kFloat32, extents);
  };
  KLLossGradArgs args;
  args.layout_q = args.layout_k = "TND";
  args.cu_seqlens_q = ConstTensor(cu_seqlens_q, DType::kInt32, {2});
  args.cu_seqlens_k = ConstTensor(cu_seqlens_k, DType::kInt32, {2});
  args.q = somewhere({num_rows, num_heads, width});
  args.k = somewhere({num_keys, 1, width});
  args.w = somewhere({num_rows, num_heads});
  args.p = somewhere({num_rows, 1, num_keys});
  args.lse = somewhere({1, num_rows});
  args.dq = somewhere({num_rows, num_heads, width});
  args.dk = somewhere({num_keys, 1, width});
  args.dw = somewhere({num_rows, num_heads});
  const Result<size_t> bytes = KLLossGradWorkspaceBytes(args, 2);
  EXPECT_TRUE(bytes.ok()) << bytes.status().message();
  return bytes.ok() ? bytes.value() : 0;
}

// Nothing of size rows x heads x keys, nor of rows x keys: rows do not count beyond a few blocks.
TEST(Workspace, HoldsNothingPerPair) {
  const size_t bytes = WorkspaceBytesOf(1024, 4096, 64, 4);
  EXPECT_LT(bytes, size_t{1024} * 4096);
  EXPECT_EQ(bytes, WorkspaceBytesOf(1'000'000, 4096, 64, 4));
}

}  // namespace
}  // namespace kindling::test
