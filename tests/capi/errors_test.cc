// Every check of the metadata operator (docs/metadata.md, by its number) through the C ABI: code,
// argument, and that nothing was written. Then the checks of the computing operators.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad.h"
#include "aclnnop/aclnn_dense_lightning_indexer_kl_loss_grad_metadata.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2.h"
#include "aclnnop/aclnn_dense_lightning_indexer_softmax_lse_v2_metadata.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm.h"
#include "aclnnop/aclnn_sparse_flash_mla_softmax_l1_norm_metadata.h"
#include "capi/device.h"

namespace kindling::test {
namespace {

// A descriptor as a test wants it.
struct Described {
  aclDataType dtype = ACL_INT32;
  std::vector<int64_t> dims;
  std::vector<int32_t> values;        // empty: no data
  std::vector<int64_t> strides = {};  // empty: dense
};

Described Vector(std::vector<int32_t> values) {
  return {ACL_INT32, {static_cast<int64_t>(values.size())}, std::move(values)};
}

// Arguments of a metadata operator that are right: two sequences, packed.
struct MetadataArguments {
  std::optional<Described> cu_q = Vector({0, 3, 5});
  std::optional<Described> cu_k = Vector({0, 4, 9});
  std::optional<Described> used_q, used_k, residual;
  std::optional<Described> metadata = Described{ACL_INT32, {64}, std::vector<int32_t>(64, -1)};
  int64_t batch_size = 0, max_q = 0, max_k = 0;
  int64_t heads_q = 8, heads_k = 1, head_dim = 128;
  int64_t mask_mode = 0, cmp_ratio = 1;
  const char* layout_q = "TND";
  const char* layout_k = "TND";
  const char* num_cores = nullptr;
  const char* num_vector_cores = nullptr;
  bool null_size = false, null_executor = false;
};

struct Outcome {
  int32_t phase1 = 0;
  int32_t synchronize = 0;
  std::string message;
};

class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (value != nullptr) setenv(name, value, 1);
  }
  ~ScopedVariable() { unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

const aclTensor* Make(std::optional<Described>& described) {
  if (!described.has_value()) return nullptr;
  void* data = described->values.empty() ? nullptr : described->values.data();
  const int64_t* strides = described->strides.empty() ? nullptr : described->strides.data();
  return aclCreateTensor(described->dims.data(), described->dims.size(), described->dtype, strides,
                         0, ACL_FORMAT_ND, described->dims.data(), described->dims.size(), data);
}

Outcome Provoke(MetadataArguments& arguments) {
  const ScopedVariable cores("KINDLING_NUM_CORES", arguments.num_cores);
  const ScopedVariable vector_cores("KINDLING_NUM_VECTOR_CORES", arguments.num_vector_cores);
  const aclTensor* tensors[] = {Make(arguments.cu_q),     Make(arguments.cu_k),
                                Make(arguments.used_q),   Make(arguments.used_k),
                                Make(arguments.residual), Make(arguments.metadata)};
  std::string layout_q = arguments.layout_q == nullptr ? "" : arguments.layout_q;
  std::string layout_k = arguments.layout_k == nullptr ? "" : arguments.layout_k;
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  Outcome outcome;
  outcome.phase1 = aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
      tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], arguments.batch_size,
      arguments.max_q, arguments.max_k, arguments.heads_q, arguments.heads_k, arguments.head_dim,
      arguments.layout_q == nullptr ? nullptr : layout_q.data(),
      arguments.layout_k == nullptr ? nullptr : layout_k.data(), arguments.mask_mode,
      arguments.cmp_ratio, tensors[5], arguments.null_size ? nullptr : &size,
      arguments.null_executor ? nullptr : &executor);
  if (outcome.phase1 == 0) {
    EXPECT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, size, executor, nullptr), 0);
    outcome.synchronize = aclrtSynchronizeStream(nullptr);
  } else {
    EXPECT_EQ(executor, nullptr);
  }
  outcome.message = RecentMessage();
  for (const aclTensor* tensor : tensors) EXPECT_EQ(aclDestroyTensor(tensor), 0);
  return outcome;
}

struct Check {
  std::string number;
  std::function<void(MetadataArguments&)> spoil;
  int32_t code;
  std::string argument;
};

constexpr int32_t kInvalid = ACLNN_ERR_PARAM_INVALID;
constexpr int32_t kNull = ACLNN_ERR_INNER_NULLPTR;

using A = MetadataArguments;

// Reported by phase 1.
const std::vector<Check>& DescriptorChecks() {
  static const std::vector<Check> kChecks = {
      {"1", [](A& a) { a.null_size = true; }, kNull, "workspaceSize"},
      {"2", [](A& a) { a.null_executor = true; }, kNull, "executor"},
      {"3", [](A& a) { a.heads_q = 0; }, kInvalid, "num_heads_q"},
      {"3", [](A& a) { a.heads_q = 129; }, kInvalid, "num_heads_q"},
      {"4", [](A& a) { a.heads_k = 2; }, kInvalid, "num_heads_k"},
      {"5", [](A& a) { a.head_dim = 64; }, kInvalid, "head_dim"},
      {"6", [](A& a) { a.batch_size = -1; }, kInvalid, "batch_size"},
      {"7", [](A& a) { a.max_q = -1; }, kInvalid, "max_seqlen_q"},
      {"8", [](A& a) { a.max_k = -1; }, kInvalid, "max_seqlen_k"},
      {"9", [](A& a) { a.mask_mode = 2; }, kInvalid, "mask_mode"},
      {"10", [](A& a) { a.cmp_ratio = 0; }, kInvalid, "cmp_ratio"},
      {"10", [](A& a) { a.cmp_ratio = 129; }, kInvalid, "cmp_ratio"},
      {"11", [](A& a) { a.layout_q = nullptr; }, kInvalid, "layout_q"},
      {"12", [](A& a) { a.layout_q = "tnd"; }, kInvalid, "layout_q"},
      {"13", [](A& a) { a.layout_k = nullptr; }, kInvalid, "layout_k"},
      {"14", [](A& a) { a.layout_k = "TND "; }, kInvalid, "layout_k"},
      {"15", [](A& a) { a.num_cores = "0"; }, kInvalid, "num_cores"},
      {"16", [](A& a) { a.num_vector_cores = "0"; }, kInvalid, "num_vector_cores"},
      {"17", [](A& a) { a.cu_q.reset(); }, kInvalid, "cu_seqlens_q"},
      {"18", [](A& a) { a.cu_k.reset(); }, kInvalid, "cu_seqlens_k"},
      {"19",
       [](A& a) {
         a.mask_mode = 3;
         a.cmp_ratio = 4;
       },
       kInvalid, "cmp_residual_k"},
      {"20", [](A& a) { a.metadata.reset(); }, kInvalid, "metadata"},
      {"20", [](A& a) { a.metadata->dims = {}; }, kInvalid, "metadata"},
      {"20", [](A& a) { a.metadata->dims = {0}; }, kInvalid, "metadata"},
      {"21", [](A& a) { a.cu_q->dims = {3, 1}; }, kInvalid, "cu_seqlens_q"},
      {"21", [](A& a) { a.cu_k->dtype = ACL_INT64; }, kInvalid, "cu_seqlens_k"},
      {"21", [](A& a) { a.used_q = Described{ACL_FLOAT, {2}, {1, 1}}; }, kInvalid, "seqused_q"},
      {"21", [](A& a) { a.used_k = Described{ACL_INT32, {1, 2}, {1, 1}}; }, kInvalid, "seqused_k"},
      {"21", [](A& a) { a.residual = Described{ACL_UINT32, {2}, {0, 0}}; }, kInvalid,
       "cmp_residual_k"},
      {"21", [](A& a) { a.cu_q->strides = {int64_t{1} << 62}; }, kInvalid, "cu_seqlens_q"},
      {"21", [](A& a) { a.cu_k->strides = {INT64_MIN}; }, kInvalid, "cu_seqlens_k"},
      {"22", [](A& a) { a.metadata->dims = {8, 8}; }, kInvalid, "metadata"},
      {"22", [](A& a) { a.metadata->dtype = ACL_UINT32; }, kInvalid, "metadata"},
      {"22", [](A& a) { a.metadata->dims = {63}; }, kInvalid, "metadata"},
      {"22", [](A& a) { a.metadata->strides = {0}; }, kInvalid, "metadata"},
      {"22", [](A& a) { a.metadata->strides = {INT64_MAX}; }, kInvalid, "metadata"},
      {"22", [](A& a) { a.metadata->strides = {INT64_MIN}; }, kInvalid, "metadata"},
      {"23", [](A& a) { a.cu_k = Vector({0, 4}); }, kInvalid, "cu_seqlens_k"},
      {"24",
       [](A& a) {
         a.used_q = Vector({1, 1, 1});
         a.used_k = Vector({1, 1, 1});
         a.cu_k = Vector({0, 1, 2, 3});
       },
       kInvalid, "cu_seqlens_q"},
      {"25",
       [](A& a) {
         a.used_k = Vector({1, 1});
         a.cu_k = Vector({0, 4});
       },
       kInvalid, "cu_seqlens_k"},
      {"26", [](A& a) { a.residual = Vector({0}); }, kInvalid, "cmp_residual_k"},
      {"27",
       [](A& a) {
         a.layout_q = a.layout_k = "BSND";
         a.max_q = a.max_k = 4;
       },
       kInvalid, "batch_size"},
      {"27",
       [](A& a) {
         a.layout_q = a.layout_k = "BSND";
         a.batch_size = 2;
         a.max_k = 4;
       },
       kInvalid, "max_seqlen_q"},
      {"27",
       [](A& a) {
         a.layout_k = "BSND";
         a.batch_size = 2;
       },
       kInvalid, "max_seqlen_k"},
      {"28", [](A& a) { a.batch_size = 3; }, kInvalid, "batch_size"},
  };
  return kChecks;
}

// Reported where the stream is synchronised.
const std::vector<Check>& ValueChecks() {
  static const std::vector<Check> kChecks = {
      {"29", [](A& a) { a.metadata->values.clear(); }, kInvalid, "metadata"},
      {"30", [](A& a) { a.cu_q->values[0] = 1; }, kInvalid, "cu_seqlens_q"},
      {"30", [](A& a) { a.cu_q->values[1] = -1; }, kInvalid, "cu_seqlens_q"},
      {"30", [](A& a) { a.cu_k->values[2] = 3; }, kInvalid, "cu_seqlens_k"},
      {"31", [](A& a) { a.used_q = Vector({4, 0}); }, kInvalid, "seqused_q"},
      {"31", [](A& a) { a.used_k = Vector({0, -1}); }, kInvalid, "seqused_k"},
      {"32", [](A& a) { a.residual = Vector({0, 1}); }, kInvalid, "cmp_residual_k"},
      {"33",
       [](A& a) {
         a.layout_q = a.layout_k = "BSND";
         a.cu_q.reset();
         a.cu_k.reset();
         a.batch_size = int64_t{1} << 60;
         a.max_q = a.max_k = 4;
       },
       kInvalid, "batch_size"},
      {"33",
       [](A& a) {
         a.layout_q = a.layout_k = "BSND";
         a.cu_q.reset();
         a.cu_k.reset();
         a.batch_size = 1;
         a.max_q = 1;
         a.max_k = int64_t{1} << 31;
       },
       kInvalid, "max_seqlen_k"},
  };
  return kChecks;
}

TEST(MetadataErrors, PassWithoutFault) {
  MetadataArguments arguments;
  const Outcome outcome = Provoke(arguments);
  EXPECT_EQ(outcome.phase1, 0) << outcome.message;
  EXPECT_EQ(outcome.synchronize, 0) << outcome.message;
  EXPECT_EQ(arguments.metadata->values[0], 5);
}

TEST(MetadataErrors, DescriptorsFailInPhase1) {
  for (const Check& check : DescriptorChecks()) {
    MetadataArguments arguments;
    check.spoil(arguments);
    const Outcome outcome = Provoke(arguments);
    EXPECT_EQ(outcome.phase1, check.code) << check.number << ": " << outcome.message;
    EXPECT_EQ(ArgumentOfMessage(outcome.message), check.argument)
        << check.number << ": " << outcome.message;
    EXPECT_NE(outcome.message.find("expected "), std::string::npos) << check.number;
    if (arguments.metadata.has_value()) {
      for (const int32_t word : arguments.metadata->values) EXPECT_EQ(word, -1) << check.number;
    }
  }
}

TEST(MetadataErrors, ValuesFailWithTheTask) {
  for (const Check& check : ValueChecks()) {
    MetadataArguments arguments;
    check.spoil(arguments);
    const Outcome outcome = Provoke(arguments);
    EXPECT_EQ(outcome.phase1, 0) << check.number << ": " << outcome.message;
    EXPECT_EQ(outcome.synchronize, check.code) << check.number;
    EXPECT_EQ(ArgumentOfMessage(outcome.message), check.argument)
        << check.number << ": " << outcome.message;
    for (const int32_t word : arguments.metadata->values) EXPECT_EQ(word, -1) << check.number;
  }
}

// Of two faults the one with the lower number decides.
TEST(MetadataErrors, TheFirstCheckDecides) {
  const std::vector<Check>& checks = DescriptorChecks();
  for (size_t first = 0; first < checks.size(); ++first) {
    for (size_t second = first + 1; second < checks.size(); ++second) {
      const int number = std::stoi(checks[first].number);
      // From 17 on, one fault may heal another, and 20 and 22 share an argument.
      if (number >= 17 || checks[first].number == checks[second].number) continue;
      MetadataArguments arguments;
      checks[second].spoil(arguments);
      checks[first].spoil(arguments);
      const Outcome outcome = Provoke(arguments);
      EXPECT_EQ(outcome.phase1, checks[first].code)
          << checks[first].number << " with " << checks[second].number;
      EXPECT_EQ(ArgumentOfMessage(outcome.message), checks[first].argument)
          << checks[first].number << " with " << checks[second].number;
    }
  }
}

TEST(MetadataErrors, TheEnvironmentIsCheckedToo) {
  MetadataArguments arguments;
  arguments.num_cores = "few";
  Outcome outcome = Provoke(arguments);
  EXPECT_EQ(outcome.phase1, kInvalid);
  EXPECT_EQ(outcome.message, "KINDLING_NUM_CORES: expected an integer, got \"few\"");
  arguments.num_cores = "40";
  outcome = Provoke(arguments);
  EXPECT_EQ(outcome.phase1, 0) << outcome.message;
  EXPECT_EQ(arguments.metadata->values[3], 35);
}

// Of memory that the runtime has handed out, both ends are known.
TEST(MetadataErrors, TensorsStayWithinTheirAllocation) {
  constexpr int64_t kWords = 64, kLast = 2 * (kWords - 1);
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, 2 * kWords * sizeof(int32_t), ACL_MEM_MALLOC_HUGE_FIRST), 0);
  std::vector<int32_t> cu = {0, 5};
  const AclTensor cu_seqlens(ACL_INT32, {2}, cu.data());
  char layout[] = "TND";
  const auto phase1 = [&](int64_t offset, int64_t stride) {
    const aclTensor* metadata =
        aclCreateTensor(&kWords, 1, ACL_INT32, &stride, offset, ACL_FORMAT_ND, &kWords, 1, memory);
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    const int32_t code = aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
        cu_seqlens, cu_seqlens, nullptr, nullptr, nullptr, 0, 0, 0, 8, 1, 128, layout, layout, 0, 1,
        metadata, &size, &executor);
    if (code == 0) {
      EXPECT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, size, executor, nullptr), 0);
      EXPECT_EQ(aclrtSynchronizeStream(nullptr), 0);
    }
    EXPECT_EQ(aclDestroyTensor(metadata), 0);
    return code;
  };
  EXPECT_EQ(phase1(0, 2), 0);
  EXPECT_EQ(phase1(kLast, -2), 0);
  EXPECT_EQ(phase1(kLast + 1, -2), 0);
  for (const auto& [offset, stride] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 2},
                                                {0, 3},
                                                {0, -1},
                                                {kLast - 1, -2},
                                                {kLast, -3},
                                                {0, -(int64_t{1} << 57)},
                                                {0, INT64_MIN},
                                                {0, INT64_MAX}}) {
    EXPECT_EQ(phase1(offset, stride), kInvalid) << offset << " " << stride;
    EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "metadata") << offset << " " << stride;
  }
  EXPECT_EQ(aclrtFree(memory), 0);
}

TEST(MetadataErrors, CompanionsCheckTheSame) {
  std::vector<int32_t> cu = {0, 5};
  std::vector<int32_t> words(64);
  const AclTensor cu_seqlens(ACL_INT32, {2}, cu.data());
  const AclTensor metadata(ACL_INT32, {64}, words.data());
  char layout[] = "TND";
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto lse = [&](int64_t head_dim) {
    return aclnnDenseLightningIndexerSoftmaxLseV2MetadataGetWorkspaceSize(
        cu_seqlens, cu_seqlens, nullptr, nullptr, nullptr, 0, 0, 0, 8, 1, head_dim, layout, layout,
        0, 1, metadata, &size, &executor);
  };
  EXPECT_EQ(lse(128), 0);
  EXPECT_EQ(lse(512), kInvalid);
  EXPECT_EQ(RecentMessage(), "head_dim: expected 128, got 512");
  const auto teacher = [&](int64_t head_dim, const aclTensor* topk_length, int64_t topk) {
    return aclnnSparseFlashMlaSoftmaxL1NormMetadataGetWorkspaceSize(
        cu_seqlens, cu_seqlens, nullptr, nullptr, nullptr, topk_length, 0, 0, 0, 8, 1, head_dim,
        topk, 1, 0, layout, layout, metadata, &size, &executor);
  };
  EXPECT_EQ(teacher(512, nullptr, 0), 0);
  EXPECT_EQ(teacher(128, nullptr, 0), kInvalid);
  EXPECT_EQ(RecentMessage(), "head_dim: expected 512, got 128");
  EXPECT_EQ(teacher(512, cu_seqlens, 0), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "topk_length");
  EXPECT_EQ(teacher(512, nullptr, 2048), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "topk");
}

// KLLossGrad in BSND, every tensor by name, so that one at a time can be wrong.
struct GradArguments {
  std::vector<int64_t> q{2, 3, 4, 128}, k{2, 5, 1, 128}, w{2, 3, 4}, p{2, 3, 1, 5}, lse{2, 1, 3},
      dq{2, 3, 4, 128}, dk{2, 5, 1, 128}, dw{2, 3, 4}, softmax{2, 3, 1, 5}, metadata{64};
  aclDataType q_dtype = ACL_FLOAT16, w_dtype = ACL_FLOAT, dq_dtype = ACL_FLOAT16,
              metadata_dtype = ACL_INT32;
  int absent = -1;  // which of the nine required tensors is null
  bool overlap = false;
};

std::pair<int32_t, std::string> Provoke(const GradArguments& a) {
  std::vector<std::vector<char>> memory;
  const auto make = [&](aclDataType dtype, const std::vector<int64_t>& dims) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    memory.emplace_back(count * aclDataTypeSize(dtype));
    return aclCreateTensor(dims.data(), dims.size(), dtype, nullptr, 0, ACL_FORMAT_ND, dims.data(),
                           dims.size(), memory.back().data());
  };
  std::vector<const aclTensor*> t = {
      make(a.q_dtype, a.q),       make(ACL_FLOAT16, a.k),
      make(a.w_dtype, a.w),       make(ACL_FLOAT, a.p),
      make(ACL_FLOAT, a.lse),     make(a.dq_dtype, a.dq),
      make(ACL_FLOAT16, a.dk),    make(ACL_FLOAT, a.dw),
      make(ACL_FLOAT, a.softmax), make(a.metadata_dtype, a.metadata)};
  std::vector<const aclTensor*> given = t;
  if (a.absent >= 0) given[a.absent] = nullptr;
  if (a.overlap) given[8] = given[3];
  char layout[] = "BSND";
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const int32_t code = aclnnDenseLightningIndexerKLLossGradGetWorkspaceSize(
      given[0], given[1], given[2], given[3], given[4], nullptr, nullptr, nullptr, nullptr, nullptr,
      given[9], layout, layout, 0, 1, given[5], given[6], given[7], given[8], &size, &executor);
  for (const aclTensor* tensor : t) EXPECT_EQ(aclDestroyTensor(tensor), 0);
  return {code, RecentMessage()};
}

TEST(GradErrors, PassWithoutFault) {
  const auto [code, message] = Provoke(GradArguments());
  EXPECT_EQ(code, 0) << message;
}

TEST(GradErrors, NullTensorsFirst) {
  constexpr const char* kNames[] = {"q",  "k",  "w",  "attn_softmax_l1_norm", "softmax_lse",
                                    "dq", "dk", "dw", "softmax_out"};
  for (int i = 0; i < 9; ++i) {
    GradArguments arguments;
    arguments.absent = i;
    arguments.w_dtype = ACL_DOUBLE;  // wrong too
    const auto [code, message] = Provoke(arguments);
    EXPECT_EQ(code, ACLNN_ERR_PARAM_NULLPTR);
    EXPECT_EQ(ArgumentOfMessage(message), kNames[i]);
  }
}

TEST(GradErrors, ShapesTypesAndLimits) {
  const struct {
    std::function<void(GradArguments&)> spoil;
    std::string argument;
  } kChecks[] = {
      {[](GradArguments& a) { a.q = {6, 4, 128}; }, "q"},
      {[](GradArguments& a) { a.q_dtype = ACL_BF16; }, "k"},
      {[](GradArguments& a) { a.q_dtype = ACL_INT8; }, "q"},
      {[](GradArguments& a) { a.k = {2, 5, 2, 128}; }, "k"},
      {[](GradArguments& a) { a.k = {3, 5, 1, 128}; }, "k"},
      {[](GradArguments& a) { a.w = {2, 3, 5}; }, "w"},
      {[](GradArguments& a) { a.w_dtype = ACL_FLOAT16; }, "w"},
      {[](GradArguments& a) { a.p = a.softmax = {2, 3, 1, 6}; }, "p"},
      {[](GradArguments& a) { a.lse = {2, 3, 1}; }, "lse"},
      {[](GradArguments& a) { a.dq = {2, 3, 4, 64}; }, "dq"},
      {[](GradArguments& a) { a.dq_dtype = ACL_BF16; }, "dq"},
      {[](GradArguments& a) { a.dk = {2, 5, 128}; }, "dk"},
      {[](GradArguments& a) { a.dw = {2, 3}; }, "dw"},
      {[](GradArguments& a) { a.softmax = {2, 3, 1, 4}; }, "softmax_out"},
      {[](GradArguments& a) { a.overlap = true; }, "softmax_out"},
      {[](GradArguments& a) { a.metadata = {32}; }, "metadata"},
      {[](GradArguments& a) { a.metadata_dtype = ACL_INT64; }, "metadata"},
      {[](GradArguments& a) {
         a.q = a.dq = {2, 3, 129, 128};
         a.w = a.dw = {2, 3, 129};
       },
       "q"},
      {[](GradArguments& a) {
         a.q = a.dq = {2, 3, 4, 64};
         a.k = a.dk = {2, 5, 1, 64};
       },
       "q"},
  };
  for (const auto& check : kChecks) {
    GradArguments arguments;
    check.spoil(arguments);
    const auto [code, message] = Provoke(arguments);
    EXPECT_EQ(code, kInvalid) << message;
    EXPECT_EQ(ArgumentOfMessage(message).substr(0, message.find('.')), check.argument) << message;
  }
}

// A tensor that is none, or is none any more, and one that is longer than its memory.
TEST(GradErrors, TensorsThatAreNone) {
  char layout[] = "TND";
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto phase1 = [&](const aclTensor* cu) {
    std::vector<int32_t> words(64);
    const AclTensor metadata(ACL_INT32, {64}, words.data());
    return aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
        cu, cu, nullptr, nullptr, nullptr, 0, 0, 0, 8, 1, 128, layout, layout, 0, 1, metadata,
        &size, &executor);
  };
  int other = 0;
  EXPECT_EQ(phase1(reinterpret_cast<aclTensor*>(&other)), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "cu_seqlens_q");
  const int64_t length = 2;
  const aclTensor* gone =
      aclCreateTensor(&length, 1, ACL_INT32, nullptr, 0, ACL_FORMAT_ND, &length, 1, nullptr);
  EXPECT_EQ(aclDestroyTensor(gone), 0);
  EXPECT_EQ(phase1(gone), kInvalid);
  void* memory = nullptr;
  ASSERT_EQ(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), 0);
  {
    const AclTensor longer(ACL_INT32, {3}, memory);
    EXPECT_EQ(phase1(longer), kInvalid);
    EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "cu_seqlens_q");
  }
  EXPECT_EQ(aclrtFree(memory), 0);
}

// As the other front doors: an address between elements is refused, not read.
TEST(GradErrors, MisalignedMemory) {
  std::vector<char> memory(4 * 65 + 1);
  std::vector<int32_t> cu_values = {0, 2};
  const AclTensor cu(ACL_INT32, {2}, cu_values.data());
  const AclTensor crooked(ACL_INT32, {2}, memory.data() + 1);
  const AclTensor crooked_record(ACL_INT32, {64}, memory.data() + 1);
  char layout[] = "TND";
  const auto synchronize = [&](const aclTensor* cu_q, const aclTensor* metadata) {
    uint64_t size = 0;
    aclOpExecutor* executor = nullptr;
    EXPECT_EQ(aclnnDenseLightningIndexerKLLossGradMetadataGetWorkspaceSize(
                  cu_q, cu, nullptr, nullptr, nullptr, 0, 0, 0, 8, 1, 128, layout, layout, 0, 1,
                  metadata, &size, &executor),
              0);
    EXPECT_EQ(aclnnDenseLightningIndexerKLLossGradMetadata(nullptr, 0, executor, nullptr), 0);
    const int32_t code = aclrtSynchronizeStream(nullptr);
    return std::make_pair(code, ArgumentOfMessage(RecentMessage()));
  };
  std::vector<int32_t> words(64);
  const AclTensor record(ACL_INT32, {64}, words.data());
  EXPECT_EQ(synchronize(crooked, record), std::make_pair(kInvalid, std::string("cu_seqlens_q")));
  EXPECT_EQ(synchronize(cu, crooked_record), std::make_pair(kInvalid, std::string("metadata")));
  const AclTensor q(ACL_FLOAT16, {2, 1, 128}, memory.data() + 1);
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  EXPECT_EQ(aclnnDenseLightningIndexerSoftmaxLseV2GetWorkspaceSize(
                q, q, q, cu, cu, nullptr, nullptr, nullptr, nullptr, layout, layout, 0, 1, q, &size,
                &executor),
            kInvalid);
  EXPECT_EQ(RecentMessage(),
            "q: expected memory aligned to whole elements, got an address that is not");
}

TEST(TeacherErrors, SparseUseIsRefused) {
  std::vector<char> memory(size_t{2} * 512 * 4);
  std::vector<float> lse_values(2), p_values(4);
  std::vector<int32_t> cu_values = {0, 2};
  const AclTensor q(ACL_FLOAT16, {2, 1, 512}, memory.data());
  const AclTensor k(ACL_FLOAT16, {2, 1, 512}, memory.data());
  const AclTensor lse(ACL_FLOAT, {1, 2, 1}, lse_values.data());
  const AclTensor p(ACL_FLOAT, {2, 1, 2}, p_values.data());
  const AclTensor cu(ACL_INT32, {2}, cu_values.data());
  char layout[] = "TND";
  uint64_t size = 0;
  aclOpExecutor* executor = nullptr;
  const auto phase1 = [&](const aclTensor* softmax_lse, const aclTensor* sparse_indices,
                          const aclTensor* topk_length, double scale, int64_t max_seqlen_k) {
    return aclnnSparseFlashMlaSoftmaxL1NormGetWorkspaceSize(
        q, k, softmax_lse, sparse_indices, cu, cu, nullptr, nullptr, nullptr, topk_length, nullptr,
        scale, max_seqlen_k, 1, 0, layout, layout, p, &size, &executor);
  };
  EXPECT_EQ(phase1(lse, nullptr, nullptr, 1.0, 2), 0);
  EXPECT_EQ(phase1(nullptr, nullptr, nullptr, 1.0, 2), ACLNN_ERR_PARAM_NULLPTR);
  EXPECT_EQ(phase1(lse, cu, nullptr, 1.0, 2), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "sparse_indices");
  EXPECT_EQ(phase1(lse, nullptr, cu, 1.0, 2), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "topk_length");
  EXPECT_EQ(phase1(lse, nullptr, nullptr, 1e300, 2), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "softmax_scale");
  EXPECT_EQ(phase1(lse, nullptr, nullptr, 1.0, 3), kInvalid);
  EXPECT_EQ(ArgumentOfMessage(RecentMessage()), "max_seqlen_k");
  EXPECT_EQ(phase1(lse, nullptr, nullptr, 1.0, -1), kInvalid);
}

}  // namespace
}  // namespace kindling::test
