// The operators through both phases: the core's results bit for bit, workspaces of exactly the size
// that was asked for, and the life of executors.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2_metadata.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm_metadata.h"
#include "capi/device.h"
#include "support/build_kind.h"
#include "support/case.h"
#include "support/compare.h"
#include "support/problem.h"
#include "support/random.h"

namespace kindling::test {
namespace {

using Phase2 = aclnnStatus (*)(void*, uint64_t, aclOpExecutor*, aclrtStream);

// What phase 1 gave.
struct Prepared {
  aclnnStatus status = ACLNN_ERR_INNER;
  uint64_t workspace_size = 0;
  aclOpExecutor* executor = nullptr;
};

// A workspace of exactly the size that was asked for, between guards.
class ExactWorkspace {
 public:
  explicit ExactWorkspace(uint64_t size) : bytes_(size, 0) {}
  ~ExactWorkspace() { EXPECT_TRUE(bytes_.GuardsIntact()); }
  void* data() { return bytes_.size() == 0 ? nullptr : bytes_.data(); }
  uint64_t size() const { return bytes_.size(); }

 private:
  GuardedBytes bytes_;
};

std::string LayoutText(Layout layout) { return layout == Layout::kTnd ? "TND" : "BSND"; }

// The descriptors that all operators take.
struct Sequence {
  Sequence(const Case& spec, const LengthTensors& lengths)
      : cu_q(lengths.cu_seqlens_q),
        cu_k(lengths.cu_seqlens_k),
        used_q(lengths.seqused_q),
        used_k(lengths.seqused_k),
        residual(lengths.cmp_residual_k),
        layout_q(LayoutText(spec.layout_q)),
        layout_k(LayoutText(spec.layout_k)),
        mask_mode(static_cast<int64_t>(spec.mask_mode)),
        cmp_ratio(spec.cmp_ratio) {}

  AclTensor cu_q, cu_k, used_q, used_k, residual;
  std::string layout_q, layout_k;
  int64_t mask_mode, cmp_ratio;
};

// Allocated lengths as attributes, for BSND.
int64_t MaxAllocated(const std::vector<Placement::Batch>& batches,
                     int64_t Placement::Batch::* allocated) {
  int64_t most = 0;
  for (const Placement::Batch& batch : batches) most = std::max(most, batch.*allocated);
  return most;
}

class Call {
 public:
  Call(const Case& spec, const LengthTensors& lengths) : spec_(spec), sequence_(spec, lengths) {}

 protected:
  Prepared PrepareRecord(
      decltype(&aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize) phase1,
      const AclTensor& metadata) {
    const Placement placement(spec_);
    const bool bsnd = spec_.layout_q == Layout::kBsnd || spec_.layout_k == Layout::kBsnd;
    Prepared out;
    out.status = phase1(sequence_.cu_q, sequence_.cu_k, sequence_.used_q, sequence_.used_k,
                        sequence_.residual, bsnd ? spec_.num_batches() : 0,
                        MaxAllocated(placement.batches, &Placement::Batch::num_allocated_rows),
                        MaxAllocated(placement.batches, &Placement::Batch::num_allocated_keys),
                        spec_.num_heads, 1, 128, sequence_.layout_q.data(),
                        sequence_.layout_k.data(), sequence_.mask_mode, sequence_.cmp_ratio,
                        metadata, &out.workspace_size, &out.executor);
    return out;
  }

  const Case& spec_;
  Sequence sequence_;
};

// KLLossGrad with its record, both queued before anything runs.
class GradCall : public Call {
 public:
  explicit GradCall(const Indexer& problem)
      : Call(problem.spec, problem.lengths),
        outputs(problem, {.softmax_out = true, .loss_rows = false}),
        record(DType::kInt32, {64}),
        q_(problem.q),
        k_(problem.k),
        w_(problem.w),
        p_(problem.p),
        lse_(problem.lse),
        metadata_(record),
        dq_(outputs.dq),
        dk_(outputs.dk),
        dw_(outputs.dw),
        softmax_(outputs.softmax_out) {}

  Prepared PrepareMetadata() {
    return PrepareRecord(aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize, metadata_);
  }
  Prepared Prepare(bool with_record = true) {
    Prepared out;
    out.status = aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize(
        q_, k_, w_, p_, lse_, sequence_.cu_q, sequence_.cu_k, sequence_.used_q, sequence_.used_k,
        sequence_.residual, with_record ? static_cast<const aclTensor*>(metadata_) : nullptr,
        sequence_.layout_q.data(), sequence_.layout_k.data(), sequence_.mask_mode,
        sequence_.cmp_ratio, dq_, dk_, dw_, softmax_, &out.workspace_size, &out.executor);
    return out;
  }

  GradOutputs outputs;
  OwnedTensor record;

 private:
  AclTensor q_, k_, w_, p_, lse_, metadata_, dq_, dk_, dw_, softmax_;
};

class LseCall : public Call {
 public:
  explicit LseCall(const Indexer& problem)
      : Call(problem.spec, problem.lengths),
        outputs(problem, {.loss_rows = false}),
        record(DType::kInt32, {64}),
        q_(problem.q),
        k_(problem.k),
        w_(problem.w),
        metadata_(record),
        lse_(outputs.lse) {}

  Prepared PrepareMetadata() {
    return PrepareRecord(aclnnDenseLightningIndexerSoftmaxLseV2MetadataGetWorkspaceSize, metadata_);
  }
  Prepared Prepare() {
    Prepared out;
    out.status = aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize(
        q_, k_, w_, sequence_.cu_q, sequence_.cu_k, sequence_.used_q, sequence_.used_k,
        sequence_.residual, metadata_, sequence_.layout_q.data(), sequence_.layout_k.data(),
        sequence_.mask_mode, sequence_.cmp_ratio, lse_, &out.workspace_size, &out.executor);
    return out;
  }

  LseOutputs outputs;
  OwnedTensor record;

 private:
  AclTensor q_, k_, w_, metadata_, lse_;
};

class TeacherCall : public Call {
 public:
  explicit TeacherCall(const Teacher& problem)
      : Call(problem.spec, problem.lengths),
        problem_(problem),
        p(TeacherOutput(problem)),
        record(DType::kInt32, {64}),
        q_(problem.q),
        k_(problem.k),
        lse_(problem.lse),
        metadata_(record),
        p_(p) {}

  Prepared PrepareMetadata() {
    const Placement placement(spec_);
    const bool bsnd = spec_.layout_q == Layout::kBsnd || spec_.layout_k == Layout::kBsnd;
    Prepared out;
    out.status = aclnnSparseFlashMlaSoftmaxL1NormMetadataGetWorkspaceSize(
        sequence_.cu_q, sequence_.cu_k, sequence_.used_q, sequence_.used_k, sequence_.residual,
        nullptr, bsnd ? spec_.num_batches() : 0,
        MaxAllocated(placement.batches, &Placement::Batch::num_allocated_rows),
        MaxAllocated(placement.batches, &Placement::Batch::num_allocated_keys), spec_.num_heads, 1,
        512, 0, sequence_.cmp_ratio, sequence_.mask_mode, sequence_.layout_q.data(),
        sequence_.layout_k.data(), metadata_, &out.workspace_size, &out.executor);
    return out;
  }
  Prepared Prepare() {
    Prepared out;
    out.status = aclnnSparseFlashMlaSoftmaxL1NormGetWorkspaceSize(
        q_, k_, lse_, nullptr, sequence_.cu_q, sequence_.cu_k, sequence_.used_q, sequence_.used_k,
        sequence_.residual, nullptr, metadata_, problem_.softmax_scale, p.shape().back(),
        sequence_.cmp_ratio, sequence_.mask_mode, sequence_.layout_q.data(),
        sequence_.layout_k.data(), p_, &out.workspace_size, &out.executor);
    return out;
  }

 private:
  const Teacher& problem_;

 public:
  OwnedTensor p, record;

 private:
  AclTensor q_, k_, lse_, metadata_, p_;
};

// Queues metadata and operator back to back, in workspaces of their exact sizes, and waits.
template <class SomeCall>
void RunBoth(SomeCall& call, Phase2 metadata, Phase2 op, aclrtStream stream = nullptr) {
  const Prepared plan = call.PrepareMetadata();
  ASSERT_EQ(plan.status, ACLNN_SUCCESS) << RecentMessage();
  const Prepared work = call.Prepare();
  ASSERT_EQ(work.status, ACLNN_SUCCESS) << RecentMessage();
  ExactWorkspace plan_memory(plan.workspace_size);
  ExactWorkspace work_memory(work.workspace_size);
  ASSERT_EQ(metadata(plan_memory.data(), plan_memory.size(), plan.executor, stream), ACLNN_SUCCESS);
  ASSERT_EQ(op(work_memory.data(), work_memory.size(), work.executor, stream), ACLNN_SUCCESS);
  ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS) << RecentMessage();
}

std::vector<Case> Cases(int64_t head_dim) {
  std::vector<Case> cases;
  Case spec;
  spec.dtype = DType::kBFloat16;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 8;
  spec.head_dim = head_dim;
  spec.num_rows = {40, 0, 9};
  spec.num_keys = {70, 3, 300};
  spec.seed = RunningTest();
  cases.push_back(spec);
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.dtype = DType::kFloat16;
  spec.num_heads = 3;
  spec.cmp_ratio = 4;
  spec.residual = {1, 0, 3};
  spec.spare_rows = spec.spare_keys = 2;
  cases.push_back(spec);
  spec.layout_q = Layout::kTnd;
  spec.dtype = DType::kFloat32;
  spec.spread = Spread::kGaps;
  spec.mask_mode = MaskMode::kNone;
  cases.push_back(spec);
  spec = Case();
  spec.num_heads = 2;
  spec.head_dim = head_dim;
  spec.num_rows = {1};
  spec.num_keys = {kSanitized ? 100 : 5000};
  spec.seed = RunningTest();
  cases.push_back(spec);
  return cases;
}

TEST(Operators, KLLossGradIsTheCores) {
  for (const Case& spec : Cases(128)) {
    SCOPED_TRACE(ToString(spec));
    const Indexer problem(spec);
    GradCall call(problem);
    RunBoth(call, aclnnDenseLightningIndexerKLLossGradMetadata,
            aclnnDenseLightningIndexerKLLossGrad);
    const GradOutputs want = RunKLLossGrad(problem, {.loss_rows = false});
    EXPECT_TRUE(SameBits(call.outputs, want, spec));
  }
}

TEST(Operators, SoftmaxLseIsTheCores) {
  for (const Case& spec : Cases(128)) {
    SCOPED_TRACE(ToString(spec));
    const Indexer problem(spec);
    LseCall call(problem);
    RunBoth(call, aclnnDenseLightningIndexerSoftmaxLseV2Metadata,
            aclnnDenseLightningIndexerSoftmaxLseV2);
    EXPECT_TRUE(SameBits("lse", call.outputs.lse, RunSoftmaxLse(problem).lse, spec));
  }
}

TEST(Operators, TheTeacherIsTheCores) {
  for (const Case& spec : Cases(512)) {
    SCOPED_TRACE(ToString(spec));
    const Teacher problem(spec, Teacher::Lse::kGiven);
    TeacherCall call(problem);
    RunBoth(call, aclnnSparseFlashMlaSoftmaxL1NormMetadata, aclnnSparseFlashMlaSoftmaxL1Norm);
    EXPECT_TRUE(SameBits("p", call.p, RunAttentionL1Norm(problem), spec));
  }
}

// The vendor's operators ignore prefix sums of a BSND side, whatever they hold; its metadata
// operators check them.
TEST(Operators, IgnoreThePrefixSumsOfAPaddedSide) {
  const auto widths = {int64_t{128}, int64_t{512}};
  for (const int64_t head_dim : widths) {
    for (const Case& spec : Cases(head_dim)) {
      const bool padded_q = spec.layout_q == Layout::kBsnd;
      const bool padded_k = spec.layout_k == Layout::kBsnd;
      if (!padded_q && !padded_k) continue;
      SCOPED_TRACE(ToString(spec));
      const auto give_sums = [&](LengthTensors& lengths, std::vector<int64_t> values) {
        if (padded_q) lengths.cu_seqlens_q = OwnedTensor::Int32(values);
        if (padded_k) lengths.cu_seqlens_k = OwnedTensor::Int32(values);
      };
      const std::vector<int64_t> sound = {0, 1, 2, 3};
      const std::vector<int64_t> unsound = {5, 2, 999};
      if (head_dim == 512) {
        Teacher problem(spec, Teacher::Lse::kGiven);
        const OwnedTensor want = RunAttentionL1Norm(problem);
        give_sums(problem.lengths, sound);
        TeacherCall call(problem);
        RunBoth(call, aclnnSparseFlashMlaSoftmaxL1NormMetadata, aclnnSparseFlashMlaSoftmaxL1Norm);
        EXPECT_TRUE(SameBits("p", call.p, want, spec));
        continue;
      }
      Indexer problem(spec);
      const GradOutputs want = RunKLLossGrad(problem, {.loss_rows = false});
      const LseOutputs want_lse = RunSoftmaxLse(problem);
      give_sums(problem.lengths, sound);
      GradCall call(problem);
      RunBoth(call, aclnnDenseLightningIndexerKLLossGradMetadata,
              aclnnDenseLightningIndexerKLLossGrad);
      EXPECT_TRUE(SameBits(call.outputs, want, spec));
      LseCall lse(problem);
      RunBoth(lse, aclnnDenseLightningIndexerSoftmaxLseV2Metadata,
              aclnnDenseLightningIndexerSoftmaxLseV2);
      EXPECT_TRUE(SameBits("lse", lse.outputs.lse, want_lse.lse, spec));

      give_sums(problem.lengths, unsound);
      GradCall crooked(problem);
      const Prepared plan = crooked.PrepareMetadata();
      ASSERT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, 0, plan.executor, nullptr),
                0);
      EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACLNN_ERR_PARAM_INVALID);
      EXPECT_EQ(ArgumentOfMessage(RecentMessage()), padded_q ? "cu_seqlens_q" : "cu_seqlens_k");
      const Prepared work = crooked.Prepare(false);
      ASSERT_EQ(work.status, ACLNN_SUCCESS) << RecentMessage();
      ExactWorkspace memory(work.workspace_size);
      ASSERT_EQ(aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), work.executor,
                                                     nullptr),
                0);
      ASSERT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS) << RecentMessage();
      EXPECT_TRUE(SameBits(crooked.outputs, want, spec));
    }
  }
}

// The packed example of the vendor's documentation.
TEST(Operators, TheRecordOfTheDocumentedExample) {
  Case spec;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.cmp_ratio = 4;
  spec.num_rows = {16};
  spec.num_keys = {4};
  const Indexer problem(spec);
  for (const int64_t num_cores : {16, 25, 36}) {
    ASSERT_EQ(setenv("KINDLING_NUM_CORES", std::to_string(num_cores).c_str(), 1), 0);
    GradCall call(problem);
    RunBoth(call, aclnnDenseLightningIndexerKLLossGradMetadata,
            aclnnDenseLightningIndexerKLLossGrad);
    const double want[] = {16, 1, 0, static_cast<double>(num_cores) - 16, 16, 4};
    for (int word = 0; word < 64; ++word) {
      EXPECT_EQ(call.record.Get(word), word < 6 ? want[word] : 0.0) << word;
    }
  }
  ASSERT_EQ(unsetenv("KINDLING_NUM_CORES"), 0);
}

TEST(Operators, TheLseOfTheDocumentedExample) {
  Case spec;
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.dtype = DType::kFloat16;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.num_rows = {2};
  spec.num_keys = {256};
  Indexer problem(spec);
  problem.q.Fill(0.2);
  problem.k.Fill(0.1);
  problem.w.Fill(0.005);
  LseCall call(problem);
  RunBoth(call, aclnnDenseLightningIndexerSoftmaxLseV2Metadata,
          aclnnDenseLightningIndexerSoftmaxLseV2);
  for (int64_t row = 0; row < 2; ++row) EXPECT_NEAR(call.outputs.lse.Get(row), 5.6475274, 1e-6);
}

TEST(Operators, RowsThatSeeNoKeyAreZero) {
  Case spec;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 8;
  spec.head_dim = 128;
  spec.num_rows = {16};
  spec.num_keys = {4};
  const Indexer problem(spec);
  GradCall call(problem);
  RunBoth(call, aclnnDenseLightningIndexerKLLossGradMetadata, aclnnDenseLightningIndexerKLLossGrad);
  for (int64_t i = 0; i < int64_t{16} * 4; ++i) {
    EXPECT_EQ(call.outputs.softmax_out.Get(i) == 0.0, i / 4 < 12 || i % 4 > i / 4 - 12) << i;
  }
}

Case SmallCase() {
  Case spec;
  spec.num_heads = 2;
  spec.head_dim = 128;
  spec.num_rows = {5, 4};
  spec.num_keys = {9, 7};
  spec.seed = RunningTest();
  return spec;
}

// A record made for any number of cores is taken, one of another operator is not.
TEST(Operators, TakeRecordsOfTheirKindOnly) {
  const Indexer problem(SmallCase());
  GradCall grad(problem);
  LseCall lse(problem);
  for (const char* num_cores : {"1", "4", "100"}) {
    ASSERT_EQ(setenv("KINDLING_NUM_CORES", num_cores, 1), 0);
    RunBoth(grad, aclnnDenseLightningIndexerKLLossGradMetadata,
            aclnnDenseLightningIndexerKLLossGrad);
    RunBoth(lse, aclnnDenseLightningIndexerSoftmaxLseV2Metadata,
            aclnnDenseLightningIndexerSoftmaxLseV2);
  }
  ASSERT_EQ(unsetenv("KINDLING_NUM_CORES"), 0);
  for (int64_t word = 0; word < 64; ++word) {
    const double of_grad = grad.record.Get(word);
    grad.record.Set(word, lse.record.Get(word));
    lse.record.Set(word, of_grad);
  }
  const Prepared wrong_grad = grad.Prepare();
  const Prepared wrong_lse = lse.Prepare();
  ExactWorkspace grad_memory(wrong_grad.workspace_size);
  ExactWorkspace lse_memory(wrong_lse.workspace_size);
  ASSERT_EQ(aclnnDenseLightningIndexerKLLossGrad(grad_memory.data(), grad_memory.size(),
                                                 wrong_grad.executor, nullptr),
            ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "metadata");
  ASSERT_EQ(aclnnDenseLightningIndexerSoftmaxLseV2(lse_memory.data(), lse_memory.size(),
                                                   wrong_lse.executor, nullptr),
            ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "metadata");
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS) << "a failure appears once";
}

TEST(Executors, NeedTheWholeWorkspace) {
  const Indexer problem(SmallCase());
  GradCall call(problem);
  const Prepared work = call.Prepare(false);
  ASSERT_EQ(work.status, ACLNN_SUCCESS);
  ASSERT_GT(work.workspace_size, 0u);
  ExactWorkspace memory(work.workspace_size);
  const auto launch = [&](void* data, uint64_t size) {
    return aclnnDenseLightningIndexerKLLossGrad(data, size, work.executor, nullptr);
  };
  EXPECT_EQ(launch(memory.data(), memory.size() - 1), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "workspaceSize");
  EXPECT_EQ(launch(nullptr, memory.size()), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(launch(static_cast<char*>(memory.data()) + 4, memory.size()), ACLNN_ERR_PARAM_INVALID);
  // What was refused may be tried again.
  EXPECT_EQ(launch(memory.data(), memory.size()), ACLNN_SUCCESS);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
}

TEST(Executors, RunOnceUnlessRepeatable) {
  const Indexer problem(SmallCase());
  GradCall call(problem);
  const Prepared work = call.Prepare(false);
  ExactWorkspace memory(work.workspace_size);
  const auto launch = [&] {
    return aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), work.executor,
                                                nullptr);
  };
  EXPECT_EQ(launch(), ACLNN_SUCCESS);
  EXPECT_EQ(launch(), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "executor");
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(work.executor), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(aclDestroyAclOpExecutor(work.executor), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
}

TEST(Executors, MayBeRepeatedUntilTheyAreDestroyed) {
  const Indexer problem(SmallCase());
  GradCall call(problem);
  const Prepared work = call.Prepare(false);
  ExactWorkspace memory(work.workspace_size);
  ASSERT_EQ(aclSetAclOpExecutorRepeatable(work.executor), ACLNN_SUCCESS);
  const auto launch = [&] {
    return aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), work.executor,
                                                nullptr);
  };
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_EQ(launch(), ACLNN_SUCCESS);
  // While its tasks are still queued.
  EXPECT_EQ(aclDestroyAclOpExecutor(work.executor), ACLNN_SUCCESS);
  EXPECT_EQ(aclDestroyAclOpExecutor(work.executor), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(launch(), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  const GradOutputs want = RunKLLossGrad(problem, {.loss_rows = false});
  EXPECT_TRUE(SameBits(call.outputs, want, problem.spec));
}

TEST(Executors, BelongToTheirOperator) {
  const Indexer problem(SmallCase());
  GradCall call(problem);
  const Prepared work = call.Prepare(false);
  ExactWorkspace memory(work.workspace_size);
  EXPECT_EQ(
      aclnnDenseLightningIndexerSoftmaxLseV2(memory.data(), memory.size(), work.executor, nullptr),
      ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), nullptr, nullptr),
            ACLNN_ERR_INNER_NULLPTR);
  int other = 0;
  EXPECT_EQ(aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(),
                                                 reinterpret_cast<aclOpExecutor*>(&other), nullptr),
            ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(
      aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), work.executor, &other),
      ACLNN_ERR_PARAM_INVALID)
      << "no such stream";
  EXPECT_EQ(aclSetAclOpExecutorRepeatable(nullptr), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(aclDestroyAclOpExecutor(nullptr), ACLNN_ERR_PARAM_NULLPTR);
  static_cast<void>(call.Prepare(false));  // never used
}

TEST(Executors, OneOfManyThreadsGetsASingleUse) {
  const Indexer problem(SmallCase());
  GradCall call(problem);
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Prepared work = call.Prepare(false);
    ExactWorkspace memory(work.workspace_size);
    std::atomic<int> num_accepted{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        num_accepted += aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(),
                                                             work.executor, nullptr) == 0;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(num_accepted, 1);
    EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
  }
}

// Every thread with a stream of its own, executors made by one thread and run by another.
TEST(Executors, ManyStreamsAndThreads) {
  const Indexer problem(SmallCase());
  const GradOutputs want = RunKLLossGrad(problem, {.loss_rows = false});
  constexpr int kThreads = 6;
  std::vector<std::unique_ptr<GradCall>> calls;
  std::vector<Prepared> plans;
  std::vector<Prepared> works;
  for (int i = 0; i < kThreads; ++i) {
    calls.push_back(std::make_unique<GradCall>(problem));
    plans.push_back(calls.back()->PrepareMetadata());
    works.push_back(calls.back()->Prepare());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      aclrtStream stream = nullptr;
      ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
      ExactWorkspace memory(works[i].workspace_size);
      ASSERT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, 0, plans[i].executor, stream),
                ACLNN_SUCCESS);
      ASSERT_EQ(aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(),
                                                     works[i].executor, stream),
                ACLNN_SUCCESS);
      ASSERT_EQ(aclrtSynchronizeStream(stream), ACL_SUCCESS);
      ASSERT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& call : calls) EXPECT_TRUE(SameBits(call->outputs, want, problem.spec));
}

// Phase 1 never looks at data: it may still be on its way.
TEST(Streams, DataMayArriveAfterPhase1) {
  Indexer problem(SmallCase());
  const GradOutputs want = RunKLLossGrad(problem, {.loss_rows = false});
  const OwnedTensor cu = problem.lengths.cu_seqlens_q;
  for (int64_t i = 0; i < cu.size(); ++i) problem.lengths.cu_seqlens_q.Set(i, -7);
  GradCall call(problem);
  const Prepared plan = call.PrepareMetadata();
  const Prepared work = call.Prepare();
  ASSERT_EQ(plan.status, ACLNN_SUCCESS) << RecentMessage();
  ASSERT_EQ(work.status, ACLNN_SUCCESS) << RecentMessage();
  const size_t bytes = cu.size() * sizeof(int32_t);
  ASSERT_EQ(aclrtMemcpyAsync(problem.lengths.cu_seqlens_q.view().data, bytes, cu.view().data, bytes,
                             ACL_MEMCPY_HOST_TO_HOST, nullptr),
            ACL_SUCCESS);
  ExactWorkspace memory(work.workspace_size);
  ASSERT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, 0, plan.executor, nullptr), 0);
  ASSERT_EQ(
      aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), work.executor, nullptr),
      0);
  ASSERT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS) << RecentMessage();
  EXPECT_TRUE(SameBits(call.outputs, want, problem.spec));
}

// Waiting for the device tells one failure; the others are still told where they belong.
TEST(Streams, TheDeviceTellsOneFailureOnly) {
  Indexer problem(SmallCase());
  problem.lengths.cu_seqlens_q.Set(1, 100);
  GradCall call(problem);
  aclrtStream streams[3];
  for (aclrtStream& stream : streams) {
    ASSERT_EQ(aclrtCreateStream(&stream), ACL_SUCCESS);
    const Prepared plan = call.PrepareMetadata();
    ASSERT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, 0, plan.executor, stream), 0);
  }
  int num_told = aclrtSynchronizeDevice() != ACL_SUCCESS;
  EXPECT_EQ(num_told, 1);
  for (const aclrtStream stream : streams) num_told += aclrtSynchronizeStream(stream) != 0;
  EXPECT_EQ(num_told, 3);
  for (const aclrtStream stream : streams) EXPECT_EQ(aclrtDestroyStream(stream), ACL_SUCCESS);
}

// What follows a failure is dropped: nothing is computed from a record that was not written.
TEST(Streams, DropWhatFollowsAFailure) {
  Indexer problem(SmallCase());
  problem.lengths.cu_seqlens_q.Set(1, 100);
  GradCall call(problem);
  const Prepared plan = call.PrepareMetadata();
  const Prepared work = call.Prepare(false);
  ExactWorkspace memory(work.workspace_size);
  ASSERT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, 0, plan.executor, nullptr), 0);
  ASSERT_EQ(
      aclnnDenseLightningIndexerKLLossGrad(memory.data(), memory.size(), work.executor, nullptr),
      0);
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACLNN_ERR_PARAM_INVALID);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "cu_seqlens_q");
  for (int64_t i = 0; i < call.record.size(); ++i) EXPECT_TRUE(call.record.Unwritten(i));
  for (int64_t i = 0; i < call.outputs.dq.size(); ++i) {
    ASSERT_TRUE(call.outputs.dq.Unwritten(i)) << "the task ran";
  }
  EXPECT_EQ(aclrtSynchronizeStream(nullptr), ACL_SUCCESS);
}

}  // namespace
}  // namespace kindling::test
