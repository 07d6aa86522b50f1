// Everything that can be wrong with a call of the metadata operator, one fault at a time, in the
// order in which the specification (section 6.1) has them found.
#ifndef KINDLING_TESTS_PROBLEM_FAULTS_H_
#define KINDLING_TESTS_PROBLEM_FAULTS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "kindling/metadata.h"
#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"

namespace kindling::test {

struct MetadataCall {
  MetadataArgs args;
  Tensor metadata;
};

// What a fault changes, or needs to be as it is in order to be one. A tensor has six parts.
enum Part : uint64_t {
  kHeadsQ = 1,
  kHeadsK = 1 << 1,
  kHeadDim = 1 << 2,
  kBatchSize = 1 << 3,
  kMaxQ = 1 << 4,
  kMaxK = 1 << 5,
  kMask = 1 << 6,
  kRatio = 1 << 7,
  kLayoutQ = 1 << 8,
  kLayoutK = 1 << 9,
  kCores = 1 << 10,
  kVectorCores = 1 << 11,
};
enum TensorParts : uint64_t {
  kPresence = 1,
  kRank = 2,
  kDtype = 4,
  kLength = 8,
  kData = 16,
  kStride = 32,
};
constexpr uint64_t CuQ(uint64_t parts) { return parts << 16; }
constexpr uint64_t CuK(uint64_t parts) { return parts << 22; }
constexpr uint64_t UsedQ(uint64_t parts) { return parts << 28; }
constexpr uint64_t UsedK(uint64_t parts) { return parts << 34; }
constexpr uint64_t Residual(uint64_t parts) { return parts << 40; }
constexpr uint64_t Record(uint64_t parts) { return parts << 46; }
constexpr uint64_t kWhole = 63;

struct Fault {
  int number;  // of the check
  int turn;    // among the faults that one check looks for one after the other
  std::string_view what;
  std::string_view argument;  // that the message names
  void (*apply)(MetadataCall&);
  uint64_t writes;
  uint64_t reads = 0;
  StatusCode code = StatusCode::kInvalidArgument;

  bool Before(const Fault& other) const {
    return number != other.number ? number < other.number : turn < other.turn;
  }
  // Whether each stays the fault that it is when both are made.
  bool GoesWith(const Fault& other) const {
    return (writes & (other.writes | other.reads)) == 0 && (other.writes & reads) == 0;
  }
  std::string Name() const { return std::to_string(number) + " (" + std::string(what) + ")"; }
};

// A valid call in which everything is given and every fault can be made. Length tensors are longer
// in memory than they say, and `words` holds 192 integers, so that lying about lengths stays
// harmless.
inline MetadataCall ValidCall(int32_t* words) {
  static constexpr int32_t kCuQ[8] = {0, 4, 4, 10, 10, 10, 10, 10};
  static constexpr int32_t kCuK[8] = {0, 5, 7, 12, 12, 12, 12, 12};
  static constexpr int32_t kUsedQ[8] = {3, 0, 6};
  static constexpr int32_t kUsedK[8] = {5, 1, 4};
  static constexpr int32_t kResidual[8] = {1, 0, 3};
  MetadataCall call;
  call.args.cu_seqlens_q = ConstTensor(kCuQ, DType::kInt32, {4});
  call.args.cu_seqlens_k = ConstTensor(kCuK, DType::kInt32, {4});
  call.args.seqused_q = ConstTensor(kUsedQ, DType::kInt32, {3});
  call.args.seqused_k = ConstTensor(kUsedK, DType::kInt32, {3});
  call.args.cmp_residual_k = ConstTensor(kResidual, DType::kInt32, {3});
  call.args.layout_q = "TND";
  call.args.layout_k = "TND";
  call.args.mask_mode = 3;
  call.args.cmp_ratio = 4;
  call.args.num_heads_q = 64;
  call.args.num_heads_k = 1;
  call.args.head_dim = 128;
  call.args.batch_size = 3;
  call.args.max_seqlen_q = 6;
  call.args.max_seqlen_k = 5;
  call.args.num_cores = 2;
  call.args.num_vector_cores = 1;
  call.metadata = Tensor(words, DType::kInt32, {kMetadataWords});
  return call;
}

namespace faults {

template <int64_t MetadataArgs::* kAttribute, int64_t kValue>
void Set(MetadataCall& call) {
  call.args.*kAttribute = kValue;
}
template <int64_t SequenceArgs::* kAttribute, int64_t kValue>
void SetShared(MetadataCall& call) {
  call.args.*kAttribute = kValue;
}
template <ConstTensor SequenceArgs::* kTensor>
void Drop(MetadataCall& call) {
  call.args.*kTensor = ConstTensor();
}
// Without elements, which is the same as absent.
template <ConstTensor SequenceArgs::* kTensor>
void Empty(MetadataCall& call) {
  (call.args.*kTensor).shape[0] = 0;
}
template <ConstTensor SequenceArgs::* kTensor, int32_t kNewRank>
void Rank(MetadataCall& call) {
  (call.args.*kTensor).rank = kNewRank;
  for (int axis = 1; axis < kMaxRank; ++axis) (call.args.*kTensor).shape[axis] = 1;
}
template <ConstTensor SequenceArgs::* kTensor, DType kNewDtype>
void Dtype(MetadataCall& call) {
  (call.args.*kTensor).dtype = kNewDtype;
}
template <ConstTensor SequenceArgs::* kTensor, int64_t kNewLength>
void Length(MetadataCall& call) {
  (call.args.*kTensor).shape[0] = kNewLength;
}
template <ConstTensor SequenceArgs::* kTensor, int64_t kNewStride>
void Stride(MetadataCall& call) {
  (call.args.*kTensor).strides[0] = kNewStride;
}
template <ConstTensor SequenceArgs::* kTensor, int32_t... kValues>
void Values(MetadataCall& call) {
  static constexpr int32_t kData[8] = {kValues...};
  (call.args.*kTensor).data = kData;
}

}  // namespace faults

// Ordered by check.
inline std::vector<Fault> AllFaults() {
  using namespace faults;  // NOLINT(google-build-using-namespace)
  using A = MetadataArgs;
  using S = SequenceArgs;
  constexpr int64_t kWrap = int64_t{1} << 32;  // what a narrowing to 32 bits would lose
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  constexpr int32_t kInt32Max = std::numeric_limits<int32_t>::max();
  constexpr StatusCode kDtypeCode = StatusCode::kInvalidDtype;
  std::vector<Fault> all = {
      {3, 0, "0 heads", "num_heads_q", Set<&A::num_heads_q, 0>, kHeadsQ},
      {3, 0, "129 heads", "num_heads_q", Set<&A::num_heads_q, 129>, kHeadsQ},
      {3, 0, "-1 heads", "num_heads_q", Set<&A::num_heads_q, -1>, kHeadsQ},
      {3, 0, "2^32 + 64 heads", "num_heads_q", Set<&A::num_heads_q, kWrap + 64>, kHeadsQ},
      {4, 0, "0 key heads", "num_heads_k", Set<&A::num_heads_k, 0>, kHeadsK},
      {4, 0, "2 key heads", "num_heads_k", Set<&A::num_heads_k, 2>, kHeadsK},
      {4, 0, "2^32 + 1 key heads", "num_heads_k", Set<&A::num_heads_k, kWrap + 1>, kHeadsK},
      {5, 0, "width 64", "head_dim", Set<&A::head_dim, 64>, kHeadDim},
      {5, 0, "width 129", "head_dim", Set<&A::head_dim, 129>, kHeadDim},
      {5, 0, "width 2^32 + 128", "head_dim", Set<&A::head_dim, kWrap + 128>, kHeadDim},
      {6, 0, "-1", "batch_size", Set<&A::batch_size, -1>, kBatchSize},
      {6, 0, "lowest", "batch_size", Set<&A::batch_size, kLowest>, kBatchSize},
      {7, 0, "-1", "max_seqlen_q", Set<&A::max_seqlen_q, -1>, kMaxQ},
      {8, 0, "-1", "max_seqlen_k", Set<&A::max_seqlen_k, -1>, kMaxK},
      {9, 0, "mask 1", "mask_mode", SetShared<&S::mask_mode, 1>, kMask},
      {9, 0, "mask 4", "mask_mode", SetShared<&S::mask_mode, 4>, kMask},
      {9, 0, "mask -3", "mask_mode", SetShared<&S::mask_mode, -3>, kMask},
      {9, 0, "mask 2^32 + 3", "mask_mode", SetShared<&S::mask_mode, kWrap + 3>, kMask},
      {10, 0, "ratio 0", "cmp_ratio", SetShared<&S::cmp_ratio, 0>, kRatio},
      {10, 0, "ratio 129", "cmp_ratio", SetShared<&S::cmp_ratio, 129>, kRatio},
      {10, 0, "ratio -4", "cmp_ratio", SetShared<&S::cmp_ratio, -4>, kRatio},
      {10, 0, "ratio 2^32 + 4", "cmp_ratio", SetShared<&S::cmp_ratio, kWrap + 4>, kRatio},
      {11, 0, "null", "layout_q", [](MetadataCall& c) { c.args.layout_q = {}; }, kLayoutQ},
      {12, 0, "lower case", "layout_q", [](MetadataCall& c) { c.args.layout_q = "tnd"; }, kLayoutQ},
      {12, 0, "more", "layout_q", [](MetadataCall& c) { c.args.layout_q = "TND "; }, kLayoutQ},
      {12, 0, "less", "layout_q", [](MetadataCall& c) { c.args.layout_q = "BSN"; }, kLayoutQ},
      {12, 0, "empty", "layout_q", [](MetadataCall& c) { c.args.layout_q = ""; }, kLayoutQ},
      {13, 0, "null", "layout_k", [](MetadataCall& c) { c.args.layout_k = {}; }, kLayoutK},
      {14, 0, "other", "layout_k", [](MetadataCall& c) { c.args.layout_k = "BNSD"; }, kLayoutK},
      {14, 0, "empty", "layout_k", [](MetadataCall& c) { c.args.layout_k = ""; }, kLayoutK},
      {15, 0, "0 cores", "num_cores", Set<&A::num_cores, 0>, kCores},
      {15, 0, "-1 cores", "num_cores", Set<&A::num_cores, -1>, kCores},
      {15, 0, "2^31 cores", "num_cores", Set<&A::num_cores, kWrap / 2>, kCores},
      {16, 0, "0 cores", "num_vector_cores", Set<&A::num_vector_cores, 0>, kVectorCores},
      {16, 0, "-1 cores", "num_vector_cores", Set<&A::num_vector_cores, -1>, kVectorCores},
      {17, 0, "none", "cu_seqlens_q", Drop<&S::cu_seqlens_q>, CuQ(kWhole), kLayoutQ},
      {17, 0, "no elements", "cu_seqlens_q", Empty<&S::cu_seqlens_q>, CuQ(kWhole), kLayoutQ},
      {18, 0, "none", "cu_seqlens_k", Drop<&S::cu_seqlens_k>, CuK(kWhole), kLayoutK},
      {18, 0, "no elements", "cu_seqlens_k", Empty<&S::cu_seqlens_k>, CuK(kWhole), kLayoutK},
      {19, 0, "none", "cmp_residual_k", Drop<&S::cmp_residual_k>, Residual(kWhole), kMask | kRatio},
      {19, 0, "no elements", "cmp_residual_k", Empty<&S::cmp_residual_k>, Residual(kWhole),
       kMask | kRatio},
      {20, 0, "none", "metadata", [](MetadataCall& c) { c.metadata = {}; }, Record(kWhole)},
      {20, 0, "rank 0", "metadata", [](MetadataCall& c) { c.metadata.rank = 0; }, Record(kWhole)},
      {20, 0, "empty", "metadata", [](MetadataCall& c) { c.metadata.shape[0] = 0; },
       Record(kWhole)},
      {22, 0, "rank 2", "metadata",
       [](MetadataCall& c) {
         c.metadata.rank = 2;
         c.metadata.shape[1] = c.metadata.strides[1] = 1;
       },
       Record(kRank), Record(kPresence)},
      {22, 1, "float32", "metadata", [](MetadataCall& c) { c.metadata.dtype = DType::kFloat32; },
       Record(kDtype), Record(kPresence), kDtypeCode},
      {22, 1, "int64", "metadata", [](MetadataCall& c) { c.metadata.dtype = DType::kOther; },
       Record(kDtype), Record(kPresence), kDtypeCode},
      {22, 2, "63 words", "metadata", [](MetadataCall& c) { c.metadata.shape[0] = 63; },
       Record(kLength), Record(kPresence)},
      {22, 2, "65 words", "metadata", [](MetadataCall& c) { c.metadata.shape[0] = 65; },
       Record(kLength), Record(kPresence)},
      {22, 3, "stride 0", "metadata", [](MetadataCall& c) { c.metadata.strides[0] = 0; },
       Record(kStride), Record(kPresence)},
      {22, 3, "stride 2^61", "metadata",
       [](MetadataCall& c) { c.metadata.strides[0] = kWrap << 29; }, Record(kStride),
       Record(kPresence)},
      {22, 3, "lowest stride", "metadata", [](MetadataCall& c) { c.metadata.strides[0] = kLowest; },
       Record(kStride), Record(kPresence)},
      // The message names the key side's source of the batch count, and the query side's with it.
      {23, 0, "seqused_q longer", "seqused_k", Length<&S::seqused_q, 4>, UsedQ(kLength),
       UsedQ(kPresence) | UsedK(kPresence)},
      {23, 0, "seqused_k shorter", "seqused_k", Length<&S::seqused_k, 2>, UsedK(kLength),
       UsedQ(kPresence) | UsedK(kPresence)},
      {23, 0, "cu_seqlens_q in its stead", "seqused_k",
       [](MetadataCall& c) {
         c.args.seqused_q = {};
         c.args.cu_seqlens_q.shape[0] = 5;
       },
       UsedQ(kWhole) | CuQ(kLength), kLayoutQ | UsedK(kPresence)},
      {23, 0, "batch_size for the keys", "batch_size",
       [](MetadataCall& c) {
         c.args.layout_k = "BSND";
         c.args.seqused_k = {};
         c.args.batch_size = 2;
       },
       kLayoutK | UsedK(kWhole) | kBatchSize, UsedQ(kPresence)},
      {24, 0, "one more", "cu_seqlens_q", Length<&S::cu_seqlens_q, 5>, CuQ(kLength),
       kLayoutQ | UsedQ(kPresence)},
      {24, 0, "one less", "cu_seqlens_q", Length<&S::cu_seqlens_q, 3>, CuQ(kLength),
       kLayoutQ | UsedQ(kPresence)},
      {25, 0, "one more", "cu_seqlens_k", Length<&S::cu_seqlens_k, 5>, CuK(kLength),
       kLayoutK | UsedK(kPresence)},
      {25, 0, "one less", "cu_seqlens_k", Length<&S::cu_seqlens_k, 3>, CuK(kLength),
       kLayoutK | UsedK(kPresence)},
      {26, 0, "one less", "cmp_residual_k", Length<&S::cmp_residual_k, 2>, Residual(kLength)},
      {26, 0, "one more", "cmp_residual_k", Length<&S::cmp_residual_k, 4>, Residual(kLength)},
      {27, 0, "no batch in BSND", "batch_size",
       [](MetadataCall& c) {
         c.args.layout_q = c.args.layout_k = "BSND";
         c.args.seqused_q = c.args.seqused_k = c.args.cmp_residual_k = {};
         c.args.batch_size = c.args.mask_mode = 0;
       },
       kLayoutQ | kLayoutK | UsedQ(kWhole) | UsedK(kWhole) | Residual(kWhole) | kBatchSize | kMask},
      {27, 1, "no query length", "max_seqlen_q",
       [](MetadataCall& c) {
         c.args.layout_q = "BSND";
         c.args.max_seqlen_q = 0;
       },
       kLayoutQ | kMaxQ},
      {27, 2, "no key length", "max_seqlen_k",
       [](MetadataCall& c) {
         c.args.layout_k = "BSND";
         c.args.max_seqlen_k = 0;
       },
       kLayoutK | kMaxK},
      {28, 0, "one more", "batch_size", Set<&A::batch_size, 4>, kBatchSize,
       UsedQ(kPresence) | UsedK(kPresence)},
      {28, 0, "2^32 + 3", "batch_size", Set<&A::batch_size, kWrap + 3>, kBatchSize,
       UsedQ(kPresence) | UsedK(kPresence)},
      {28, 0, "2^60", "batch_size", Set<&A::batch_size, int64_t{1} << 60>, kBatchSize,
       UsedQ(kPresence) | UsedK(kPresence)},
      {29, 0, "null", "metadata", [](MetadataCall& c) { c.metadata.data = nullptr; },
       Record(kData), Record(kPresence)},
      {30, 0, "starts at 1", "cu_seqlens_q", Values<&S::cu_seqlens_q, 1, 4, 4, 10>, CuQ(kData)},
      {30, 0, "negative", "cu_seqlens_q", Values<&S::cu_seqlens_q, 0, -1, 4, 10>, CuQ(kData)},
      {30, 0, "decreases", "cu_seqlens_q", Values<&S::cu_seqlens_q, 0, 5, 4, 10>, CuQ(kData)},
      {30, 1, "starts at -1", "cu_seqlens_k", Values<&S::cu_seqlens_k, -1, 5, 7, 12>, CuK(kData)},
      {30, 1, "negative", "cu_seqlens_k", Values<&S::cu_seqlens_k, 0, 5, 7, -12>, CuK(kData)},
      {30, 1, "decreases", "cu_seqlens_k", Values<&S::cu_seqlens_k, 0, 5, 12, 11>, CuK(kData)},
      {31, 0, "negative", "seqused_q", Values<&S::seqused_q, 3, -1, 6>, UsedQ(kData)},
      {31, 0, "too long", "seqused_q", Values<&S::seqused_q, 3, 0, 7>, UsedQ(kData),
       CuQ(kData) | kLayoutQ | kMaxQ},
      {31, 1, "negative", "seqused_k", Values<&S::seqused_k, -1, 1, 4>, UsedK(kData)},
      {31, 1, "too long", "seqused_k", Values<&S::seqused_k, 5, 3, 4>, UsedK(kData),
       CuK(kData) | kLayoutK | kMaxK},
      {32, 0, "negative", "cmp_residual_k", Values<&S::cmp_residual_k, 1, 0, -1>, Residual(kData)},
      {32, 0, "the ratio", "cmp_residual_k", Values<&S::cmp_residual_k, 1, 4, 3>, Residual(kData),
       kRatio},
      {33, 0, "2^31 query tokens", "max_seqlen_q",
       [](MetadataCall& c) {
         c.args.layout_q = "BSND";
         c.args.seqused_q = {};
         c.args.max_seqlen_q = kWrap / 2;
       },
       kLayoutQ | UsedQ(kWhole) | kMaxQ, kBatchSize},
      {33, 0, "2^31 keys", "max_seqlen_k",
       [](MetadataCall& c) {
         c.args.layout_k = "BSND";
         c.args.seqused_k = {};
         c.args.max_seqlen_k = kWrap / 2;
       },
       kLayoutK | UsedK(kWhole) | kMaxK, kBatchSize},
      {33, 0, "2^31 + 1 rows", "batch_size",
       [](MetadataCall& c) {
         c.args.layout_q = "BSND";
         c.args.seqused_q = {};
         c.args.max_seqlen_q = 715827883;
       },
       kLayoutQ | UsedQ(kWhole) | kMaxQ, kBatchSize},
      {33, 0, "2^31 rows", "seqused_q",
       [](MetadataCall& c) {
         c.args.layout_q = "BSND";
         c.args.max_seqlen_q = kInt32Max;
         Values<&S::seqused_q, kInt32Max, 0, 1>(c);
       },
       kLayoutQ | UsedQ(kData) | kMaxQ},
  };
  const auto add_tensor = [&all]<ConstTensor S::* kTensor>(int turn, std::string_view name,
                                                           uint64_t (*parts)(uint64_t)) {
    const uint64_t presence = parts(kPresence);
    const std::vector<Fault> faults = {
        {21, turn, "rank 0", name, Rank<kTensor, 0>, parts(kRank), presence},
        {21, turn, "rank 2", name, Rank<kTensor, 2>, parts(kRank), presence},
        {21, turn, "rank 5", name, Rank<kTensor, 5>, parts(kRank), presence},
        {21, turn + 1, "float32", name, Dtype<kTensor, DType::kFloat32>, parts(kDtype), presence,
         kDtypeCode},
        {21, turn + 1, "int64", name, Dtype<kTensor, DType::kOther>, parts(kDtype), presence,
         kDtypeCode},
        {21, turn + 2, "stride 2^61", name, Stride<kTensor, kWrap << 29>, parts(kStride), presence},
        {21, turn + 2, "highest stride", name, Stride<kTensor, kHighest>, parts(kStride), presence},
        {21, turn + 2, "lowest stride", name, Stride<kTensor, kLowest>, parts(kStride), presence},
    };
    all.insert(all.end(), faults.begin(), faults.end());
  };
  add_tensor.template operator()<&S::cu_seqlens_q>(0, "cu_seqlens_q", CuQ);
  add_tensor.template operator()<&S::cu_seqlens_k>(3, "cu_seqlens_k", CuK);
  add_tensor.template operator()<&S::seqused_q>(6, "seqused_q", UsedQ);
  add_tensor.template operator()<&S::seqused_k>(9, "seqused_k", UsedK);
  add_tensor.template operator()<&S::cmp_residual_k>(12, "cmp_residual_k", Residual);
  return all;
}

}  // namespace kindling::test

#endif  // KINDLING_TESTS_PROBLEM_FAULTS_H_
