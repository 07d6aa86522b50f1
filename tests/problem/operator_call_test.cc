// What the floating-point operators refuse, and what they make of what they accept.
// The teacher has a file of its own, teacher_call_test.cc.
#include "problem/operator_call.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "problem/operator_args.h"

namespace kindling {
namespace {

using test::Arena;
using test::DropDim;
using test::OperatorShape;
using test::SetDim;
using test::ValidKLLossGrad;
using test::ValidSoftmaxLse;
using Grad = KLLossGradArgs;
using Lse = SoftmaxLseArgs;
using GradFaults = std::vector<test::OperatorFault<Grad>>;
using LseFaults = std::vector<test::OperatorFault<Lse>>;

constexpr StatusCode kDtypeCode = StatusCode::kInvalidDtype;
constexpr OperatorShape kPacked;
constexpr OperatorShape kPadded{.layout_q = Layout::kBsnd, .layout_k = Layout::kBsnd};
constexpr OperatorShape kPackedRows{.layout_q = Layout::kTnd, .layout_k = Layout::kBsnd};
constexpr OperatorShape kPackedKeys{.layout_q = Layout::kBsnd, .layout_k = Layout::kTnd};
constexpr OperatorShape kShapes[] = {kPacked, kPadded, kPackedRows, kPackedKeys};

Status CheckGrad(const Grad& args) { return CheckKLLossGrad(args, Precision::kNative).status(); }
Status CheckLse(const Lse& args) { return CheckSoftmaxLse(args, Precision::kNative).status(); }

void ExpectGradRefuses(const OperatorShape& shape, const GradFaults& faults) {
  test::ExpectRefused(shape, faults, ValidKLLossGrad, CheckGrad);
}
void ExpectLseRefuses(const OperatorShape& shape, const LseFaults& faults) {
  test::ExpectRefused(shape, faults, ValidSoftmaxLse, CheckLse);
}

const int32_t kNumbers[] = {0, 2, 4, 2, 9, 3, 3, 0, 1};

TEST(KLLossGradCall, AcceptsEveryLayoutAndDtype) {
  for (OperatorShape shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      shape.dtype = dtype;
      Arena arena;
      Grad args = ValidKLLossGrad(shape, arena);
      EXPECT_TRUE(CheckGrad(args).ok()) << CheckGrad(args).message();
      args.dq.dtype = args.dk.dtype = DType::kFloat32;
      EXPECT_TRUE(CheckGrad(args).ok()) << CheckGrad(args).message();
    }
  }
}

TEST(KLLossGradCall, HasNoLimitOnHeadsAndWidth) {
  for (const auto& [num_heads, head_dim] : {std::pair{1, 1}, {129, 7}, {3, 300}}) {
    OperatorShape shape;
    shape.num_heads = num_heads;
    shape.head_dim = head_dim;
    Arena arena;
    const Grad args = ValidKLLossGrad(shape, arena);
    const Result<OperatorCall> call = CheckKLLossGrad(args, Precision::kNative);
    ASSERT_TRUE(call.ok()) << call.status().message();
    EXPECT_EQ(call.value().indexer.num_heads, num_heads);
    EXPECT_EQ(call.value().indexer.head_dim, head_dim);
  }
}

// Faults that are the same whatever the layouts.
TEST(KLLossGradCall, RefusesAbsentTensorsWrongDtypesAndAttributes) {
  const GradFaults faults = {
      {"none", "q", [](Grad& a) { a.q = {}; }},
      {"none", "k", [](Grad& a) { a.k = {}; }},
      {"none", "w", [](Grad& a) { a.w = {}; }},
      {"none", "p", [](Grad& a) { a.p = {}; }},
      {"none", "lse", [](Grad& a) { a.lse = {}; }},
      {"none", "dq", [](Grad& a) { a.dq.rank = -1; }},
      {"none", "dk", [](Grad& a) { a.dk.rank = -1; }},
      {"none", "dw", [](Grad& a) { a.dw = {}; }},
      {"no data", "q", [](Grad& a) { a.q.data = nullptr; }},
      {"no data", "k", [](Grad& a) { a.k.data = nullptr; }},
      {"no data", "w", [](Grad& a) { a.w.data = nullptr; }},
      {"no data", "p", [](Grad& a) { a.p.data = nullptr; }},
      {"no data", "lse", [](Grad& a) { a.lse.data = nullptr; }},
      {"no data", "row_scale", [](Grad& a) { a.row_scale.data = nullptr; }},
      {"no data", "dq", [](Grad& a) { a.dq.data = nullptr; }},
      {"no data", "dk", [](Grad& a) { a.dk.data = nullptr; }},
      {"no data", "dw", [](Grad& a) { a.dw.data = nullptr; }},
      {"no data", "softmax_out", [](Grad& a) { a.softmax_out.data = nullptr; }},
      {"no data", "loss_rows", [](Grad& a) { a.loss_rows.data = nullptr; }},
      {"rank", "q", [](Grad& a) { DropDim(a.q); }},
      {"rank", "k", [](Grad& a) { DropDim(a.k); }},
      {"rank", "w", [](Grad& a) { DropDim(a.w); }},
      {"rank", "p", [](Grad& a) { DropDim(a.p); }},
      {"rank", "lse", [](Grad& a) { DropDim(a.lse); }},
      {"rank", "row_scale", [](Grad& a) { DropDim(a.row_scale); }},
      {"rank", "dq", [](Grad& a) { DropDim(a.dq); }},
      {"rank", "dk", [](Grad& a) { DropDim(a.dk); }},
      {"rank", "dw", [](Grad& a) { DropDim(a.dw); }},
      {"rank", "softmax_out", [](Grad& a) { DropDim(a.softmax_out); }},
      {"rank", "loss_rows", [](Grad& a) { DropDim(a.loss_rows); }},
      {"rank 5", "q", [](Grad& a) { a.q.rank = 5; }},
      {"rank 5", "dq", [](Grad& a) { a.dq.rank = 5; }},
      {"int32", "q", [](Grad& a) { a.q.dtype = DType::kInt32; }, kDtypeCode},
      {"float64", "q", [](Grad& a) { a.q.dtype = DType::kFloat64; }, kDtypeCode},
      {"another", "q", [](Grad& a) { a.q.dtype = DType::kOther; }, kDtypeCode},
      {"not q's", "k", [](Grad& a) { a.k.dtype = DType::kBFloat16; }, kDtypeCode},
      {"bf16", "w", [](Grad& a) { a.w.dtype = DType::kBFloat16; }, kDtypeCode},
      {"fp16", "p", [](Grad& a) { a.p.dtype = DType::kFloat16; }, kDtypeCode},
      {"float64", "lse", [](Grad& a) { a.lse.dtype = DType::kFloat64; }, kDtypeCode},
      {"int32", "row_scale", [](Grad& a) { a.row_scale.dtype = DType::kInt32; }, kDtypeCode},
      {"bf16 of fp32", "dq", [](Grad& a) { a.dq.dtype = DType::kBFloat16; }, kDtypeCode},
      {"int32", "dq", [](Grad& a) { a.dq.dtype = DType::kInt32; }, kDtypeCode},
      {"fp16 of fp32", "dk", [](Grad& a) { a.dk.dtype = DType::kFloat16; }, kDtypeCode},
      {"float64", "dw", [](Grad& a) { a.dw.dtype = DType::kFloat64; }, kDtypeCode},
      {"bf16", "softmax_out", [](Grad& a) { a.softmax_out.dtype = DType::kBFloat16; }, kDtypeCode},
      {"float64", "loss_rows", [](Grad& a) { a.loss_rows.dtype = DType::kFloat64; }, kDtypeCode},
      {"mask 2", "mask_mode", [](Grad& a) { a.mask_mode = 2; }},
      {"ratio 129", "cmp_ratio", [](Grad& a) { a.cmp_ratio = 129; }},
      {"no residual", "cmp_residual_k",
       [](Grad& a) {
         a.mask_mode = 3;
         a.cmp_ratio = 2;
       }},
      {"not a layout", "layout_q", [](Grad& a) { a.layout_q = "BNSD"; }},
      {"null layout", "layout_k", [](Grad& a) { a.layout_k = {}; }},
      {"length 3", "cmp_residual_k",
       [](Grad& a) { a.cmp_residual_k = ConstTensor(kNumbers, DType::kInt32, {3}); }},
  };
  for (const OperatorShape& shape : kShapes) ExpectGradRefuses(shape, faults);
}

TEST(KLLossGradCall, RefusesDimsThatContradictPackedRows) {
  ExpectGradRefuses(kPacked,
                    {
                        {"no heads", "q", [](Grad& a) { SetDim(a.q, 1, 0); }},
                        {"no width", "q", [](Grad& a) { SetDim(a.q, 2, 0); }},
                        {"negative", "q", [](Grad& a) { SetDim(a.q, 0, -1); }},
                        {"2^63 elements", "q", [](Grad& a) { SetDim(a.q, 0, int64_t{1} << 58); }},
                        {"2^66 elements", "q",
                         [](Grad& a) {
                           for (int axis = 0; axis < 3; ++axis) SetDim(a.q, axis, int64_t{1} << 22);
                         }},
                        {"2 key heads", "k", [](Grad& a) { SetDim(a.k, 1, 2); }},
                        {"no key head", "k", [](Grad& a) { SetDim(a.k, 1, 0); }},
                        {"width", "k", [](Grad& a) { SetDim(a.k, 2, 7); }},
                        {"rows", "w", [](Grad& a) { SetDim(a.w, 0, 4); }},
                        {"heads", "w", [](Grad& a) { SetDim(a.w, 1, 5); }},
                        {"rows", "p", [](Grad& a) { SetDim(a.p, 0, 6); }},
                        {"2 key heads", "p", [](Grad& a) { SetDim(a.p, 1, 2); }},
                        {"narrower than the longest row", "p", [](Grad& a) { SetDim(a.p, 2, 2); }},
                        {"no columns", "p", [](Grad& a) { SetDim(a.p, 2, 0); }},
                        {"2 key heads", "lse", [](Grad& a) { SetDim(a.lse, 0, 2); }},
                        {"rows", "lse", [](Grad& a) { SetDim(a.lse, 1, 4); }},
                        {"rows", "row_scale", [](Grad& a) { SetDim(a.row_scale, 1, 6); }},
                        {"rows", "dq", [](Grad& a) { SetDim(a.dq, 0, 4); }},
                        {"heads", "dq", [](Grad& a) { SetDim(a.dq, 1, 3); }},
                        {"tokens", "dk", [](Grad& a) { SetDim(a.dk, 0, 5); }},
                        {"width", "dk", [](Grad& a) { SetDim(a.dk, 2, 9); }},
                        {"heads", "dw", [](Grad& a) { SetDim(a.dw, 1, 1); }},
                        {"columns", "softmax_out", [](Grad& a) { SetDim(a.softmax_out, 2, 5); }},
                        {"rows", "loss_rows", [](Grad& a) { SetDim(a.loss_rows, 1, 3); }},
                    });
}

TEST(KLLossGradCall, RefusesDimsThatContradictPaddedRows) {
  ExpectGradRefuses(kPadded,
                    {
                        {"no heads", "q", [](Grad& a) { SetDim(a.q, 2, 0); }},
                        {"2 key heads", "k", [](Grad& a) { SetDim(a.k, 2, 2); }},
                        {"batches", "k", [](Grad& a) { SetDim(a.k, 0, 1); }},
                        {"batches", "w", [](Grad& a) { SetDim(a.w, 0, 1); }},
                        {"rows", "w", [](Grad& a) { SetDim(a.w, 1, 2); }},
                        {"batches", "p", [](Grad& a) { SetDim(a.p, 0, 3); }},
                        {"rows", "p", [](Grad& a) { SetDim(a.p, 1, 2); }},
                        {"columns below S2", "p", [](Grad& a) { SetDim(a.p, 3, 3); }},
                        {"columns above S2", "p", [](Grad& a) { SetDim(a.p, 3, 5); }},
                        {"batches", "lse", [](Grad& a) { SetDim(a.lse, 0, 1); }},
                        {"2 key heads", "lse", [](Grad& a) { SetDim(a.lse, 1, 2); }},
                        {"rows", "lse", [](Grad& a) { SetDim(a.lse, 2, 5); }},
                        {"rows", "row_scale", [](Grad& a) { SetDim(a.row_scale, 2, 2); }},
                        {"batches", "dq", [](Grad& a) { SetDim(a.dq, 0, 1); }},
                        {"keys", "dk", [](Grad& a) { SetDim(a.dk, 1, 3); }},
                        {"columns", "softmax_out", [](Grad& a) { SetDim(a.softmax_out, 3, 5); }},
                    });
}

// Lengths that lead outside of the tensors.
TEST(KLLossGradCall, RefusesLengthsThatDoNotFitTheTensors) {
  ExpectGradRefuses(
      kPacked,
      {
          {"ends before T1", "cu_seqlens_q",
           [](Grad& a) { a.cu_seqlens_q = ConstTensor(kNumbers, DType::kInt32, {3}); }},
          {"ends behind T2", "cu_seqlens_k",
           [](Grad& a) {
             static const int32_t beyond[] = {0, 3, 5};
             a.cu_seqlens_k = ConstTensor(beyond, DType::kInt32, {3});
           }},
          {"none", "cu_seqlens_q", [](Grad& a) { a.cu_seqlens_q = {}; }},
          {"none", "cu_seqlens_k", [](Grad& a) { a.cu_seqlens_k = {}; }},
          {"dtype", "cu_seqlens_k", [](Grad& a) { a.cu_seqlens_k.dtype = DType::kFloat32; },
           kDtypeCode},
          {"one sequence less", "cu_seqlens_k", [](Grad& a) { a.cu_seqlens_k.shape[0] = 2; }},
          {"longer than allocated", "seqused_q",
           [](Grad& a) { a.seqused_q = ConstTensor(kNumbers + 2, DType::kInt32, {2}); }},
          {"for 3 sequences", "cu_seqlens_q",
           [](Grad& a) {
             a.seqused_q = a.seqused_k = ConstTensor(kNumbers + 7, DType::kInt32, {3});
           }},
      });
  ExpectGradRefuses(
      kPadded, {
                   {"longer than S1", "seqused_q",
                    [](Grad& a) { a.seqused_q = ConstTensor(kNumbers + 1, DType::kInt32, {2}); }},
                   {"longer than S2", "seqused_k",
                    [](Grad& a) { a.seqused_k = ConstTensor(kNumbers + 3, DType::kInt32, {2}); }},
                   {"negative", "seqused_k",
                    [](Grad& a) {
                      static const int32_t negative[] = {0, -1};
                      a.seqused_k = ConstTensor(negative, DType::kInt32, {2});
                    }},
                   {"1 batch more", "seqused_k",
                    [](Grad& a) { a.seqused_k = ConstTensor(kNumbers + 5, DType::kInt32, {3}); }},
               });
}

TEST(KLLossGradCall, RefusesPrefixSumsOfAPaddedSide) {
  test::ExpectSumsRefusedWherePadded(ValidKLLossGrad, CheckGrad, [](const Grad& args) {
    return DescribeKLLossGrad(args, Precision::kNative);
  });
}

// Used lengths of both sides that agree with each other and not with the tensors: following them
// would lead out of the tensors.
TEST(KLLossGradCall, RefusesUsedLengthsOfMoreBatchesThanTheTensorsHave) {
  static const int32_t used[] = {1, 1, 1};
  static const int32_t cu[] = {0, 1, 3, 4};
  const auto both = [](Grad& a) {
    a.seqused_q = a.seqused_k = ConstTensor(used, DType::kInt32, {3});
  };
  ExpectGradRefuses(kPadded, {{"3 for 2 batches", "seqused_q", both}});
  ExpectGradRefuses(kPackedKeys, {{"3 for 2 batches", "seqused_q", [](Grad& a) {
                                     a.seqused_q = ConstTensor(used, DType::kInt32, {3});
                                     a.cu_seqlens_k = ConstTensor(cu, DType::kInt32, {4});
                                   }}});
  ExpectGradRefuses(kPackedRows, {{"3 for 2 batches", "seqused_k", [](Grad& a) {
                                     static const int32_t cu_q[] = {0, 1, 3, 5};
                                     a.seqused_k = ConstTensor(used, DType::kInt32, {3});
                                     a.cu_seqlens_q = ConstTensor(cu_q, DType::kInt32, {4});
                                   }}});
}

TEST(KLLossGradCall, RefusesOutputsThatAreNotDenseOrShareMemory) {
  ExpectGradRefuses(
      kPacked, {
                   {"gaps", "dq", [](Grad& a) { a.dq.strides[0] *= 2; }},
                   {"backwards", "dk", [](Grad& a) { a.dk.strides[2] = -1; }},
                   {"transposed", "dw",
                    [](Grad& a) {
                      a.dw.strides[0] = 1;
                      a.dw.strides[1] = 5;
                    }},
                   {"repeated", "softmax_out", [](Grad& a) { a.softmax_out.strides[0] = 0; }},
                   {"gaps", "loss_rows", [](Grad& a) { a.loss_rows.strides[1] = 3; }},
                   {"dq over q", "dq", [](Grad& a) { a.dq.data = const_cast<void*>(a.q.data); }},
                   {"dk over w", "dk", [](Grad& a) { a.dk.data = const_cast<void*>(a.w.data); }},
                   {"dw over p", "dw", [](Grad& a) { a.dw.data = const_cast<void*>(a.p.data); }},
                   {"softmax over lse", "softmax_out",
                    [](Grad& a) { a.softmax_out.data = const_cast<void*>(a.lse.data); }},
                   {"loss over row_scale", "loss_rows",
                    [](Grad& a) { a.loss_rows.data = const_cast<void*>(a.row_scale.data); }},
                   {"dk over the end of dq", "dq",
                    [](Grad& a) { a.dk.data = static_cast<float*>(a.dq.data) + 159; }},
                   {"loss over dw", "dw", [](Grad& a) { a.loss_rows.data = a.dw.data; }},
               });
}

TEST(KLLossGradCall, AcceptsNeighbours) {
  Arena arena;
  Grad args = ValidKLLossGrad(kPacked, arena);
  args.dw.data = static_cast<float*>(args.dq.data) + 5 * 4 * 8;
  EXPECT_TRUE(CheckGrad(args).ok()) << CheckGrad(args).message();
}

// An input that is walked backwards lies before its data pointer.
TEST(KLLossGradCall, KnowsWhereBackwardInputsLie) {
  Arena arena;
  Grad args = ValidKLLossGrad(kPacked, arena);
  const Tensor memory = arena.New(DType::kFloat32, {100});
  auto* const first = static_cast<float*>(memory.data);
  args.lse.data = first + 50;  // and 4 before it
  args.lse.strides[1] = -1;
  for (const int64_t begin : {26, 27, 46, 50, 51}) {
    args.dw.data = first + begin;  // 20 elements
    const bool apart = begin == 26 || begin == 51;
    EXPECT_EQ(CheckGrad(args).ok(), apart) << begin << ": " << CheckGrad(args).message();
    EXPECT_EQ(test::ArgumentOf(CheckGrad(args)), apart ? "" : "dw") << begin;
  }
}

TEST(KLLossGradCall, AcceptsStridedInputsAndKeepsTheStrides) {
  Arena arena;
  Grad args = ValidKLLossGrad(kPadded, arena);
  args.q.strides = {7, -11, 13, 2};
  args.k.strides = {-3, 5, 0, -1};
  args.w.strides = {1, 2, 6};
  args.p.strides = {17, 4, 9, -2};
  args.lse.strides = {3, 8, -1};
  args.row_scale.strides = {0, 0, 0};
  const Result<OperatorCall> checked = CheckKLLossGrad(args, Precision::kNative);
  ASSERT_TRUE(checked.ok()) << checked.status().message();
  const OperatorCall& call = checked.value();
  EXPECT_EQ(call.indexer.q.RowOffset(1, 0, 2), 7 - 22);
  EXPECT_EQ(call.indexer.q.head_stride, 13);
  EXPECT_EQ(call.indexer.q.element_stride, 2);
  EXPECT_EQ(call.indexer.k.RowOffset(1, 0, 3), -3 + 15);
  EXPECT_EQ(call.indexer.k.element_stride, -1);
  EXPECT_EQ(call.w.RowOffset(1, 0, 1), 3);
  EXPECT_EQ(call.w.head_stride, 6);
  EXPECT_EQ(call.p.RowOffset(1, 0, 1), 21);
  EXPECT_EQ(call.p.element_stride, -2);
  EXPECT_EQ(call.lse.RowOffset(1, 0, 2), 3 - 2) << "the key-head dim lies between batch and row";
  EXPECT_EQ(call.row_scale.RowOffset(1, 0, 2), 0);
}

TEST(KLLossGradCall, DescribesTheCall) {
  Arena arena;
  Grad args = ValidKLLossGrad(kPackedRows, arena);
  const Result<OperatorCall> checked = CheckKLLossGrad(args, Precision::kNative);
  ASSERT_TRUE(checked.ok()) << checked.status().message();
  const OperatorCall& call = checked.value();
  EXPECT_EQ(call.problem.num_rows(), 5);
  EXPECT_EQ(call.problem.max_num_keys(), 4);
  EXPECT_EQ(call.indexer.num_heads, 4);
  EXPECT_EQ(call.indexer.num_key_heads, 1);
  EXPECT_EQ(call.indexer.head_dim, 8);
  EXPECT_EQ(call.row_stride_p, 6);
  EXPECT_EQ(call.indexer.q.data, args.q.data);
  EXPECT_TRUE(call.indexer.q.packed && call.dq.packed && call.lse.packed && call.p.packed);
  EXPECT_FALSE(call.indexer.k.packed || call.dk.packed);
  EXPECT_EQ(call.indexer.q.RowOffset(1, 2, 1), 3 * 32);
  EXPECT_EQ(call.indexer.k.RowOffset(1, 4, 1), 32 + 8);
  EXPECT_EQ(call.lse.RowOffset(1, 2, 1), 3);
  EXPECT_EQ(call.dk.data, args.dk.data);
  EXPECT_EQ(call.loss_rows.data, args.loss_rows.data);
}

TEST(KLLossGradCall, LeavesOutWhatIsOptional) {
  Arena arena;
  Grad args = ValidKLLossGrad(kPacked, arena);
  args.row_scale.shape[1] = 0;  // without elements, so absent
  args.row_scale.dtype = DType::kOther;
  args.softmax_out = args.loss_rows = {};
  const Result<OperatorCall> checked = CheckKLLossGrad(args, Precision::kNative);
  ASSERT_TRUE(checked.ok()) << checked.status().message();
  EXPECT_FALSE(checked.value().row_scale);
  EXPECT_FALSE(checked.value().softmax_out);
  EXPECT_FALSE(checked.value().loss_rows);
}

TEST(KLLossGradCall, AcceptsNoRowsAndNoBatches) {
  static const int32_t nothing[] = {0, 0, 0};
  Arena arena;
  Grad args = ValidKLLossGrad(kPacked, arena);
  args.cu_seqlens_q = ConstTensor(nothing, DType::kInt32, {3});
  args.q.shape[0] = args.w.shape[0] = args.p.shape[0] = 0;
  args.lse.shape[1] = args.row_scale.shape[1] = 0;
  args.dq.shape[0] = args.dw.shape[0] = args.softmax_out.shape[0] = args.loss_rows.shape[1] = 0;
  args.q.data = args.w.data = args.dq.data = nullptr;
  const Result<OperatorCall> packed = CheckKLLossGrad(args, Precision::kNative);
  ASSERT_TRUE(packed.ok()) << packed.status().message();
  EXPECT_EQ(packed.value().problem.num_rows(), 0);

  args = ValidKLLossGrad(kPadded, arena);
  for (ConstTensor* tensor : {&args.q, &args.k, &args.w, &args.p, &args.lse, &args.row_scale}) {
    tensor->shape[0] = 0;
  }
  for (Tensor* tensor : {&args.dq, &args.dk, &args.dw, &args.softmax_out, &args.loss_rows}) {
    tensor->shape[0] = 0;
  }
  const Result<OperatorCall> padded = CheckKLLossGrad(args, Precision::kNative);
  ASSERT_TRUE(padded.ok()) << padded.status().message();
  EXPECT_EQ(padded.value().problem.num_batches(), 0);
}

// The reference takes fp64 and nothing else.
TEST(KLLossGradCall, InDoubleIsDoubleThroughout) {
  OperatorShape shape;
  shape.dtype = shape.wide = DType::kFloat64;
  const auto check = [](const Grad& args) {
    return CheckKLLossGrad(args, Precision::kDouble).status();
  };
  Arena arena;
  EXPECT_TRUE(check(ValidKLLossGrad(shape, arena)).ok());
  test::ExpectRefused(shape,
                      GradFaults{
                          {"fp32", "q", [](Grad& a) { a.q.dtype = DType::kFloat32; }, kDtypeCode},
                          {"fp32", "k", [](Grad& a) { a.k.dtype = DType::kFloat32; }, kDtypeCode},
                          {"fp32", "p", [](Grad& a) { a.p.dtype = DType::kFloat32; }, kDtypeCode},
                          {"fp32", "dq", [](Grad& a) { a.dq.dtype = DType::kFloat32; }, kDtypeCode},
                          {"fp32", "dw", [](Grad& a) { a.dw.dtype = DType::kFloat32; }, kDtypeCode},
                      },
                      ValidKLLossGrad, check);
}

TEST(SoftmaxLseCall, AcceptsEveryLayoutAndDtype) {
  for (OperatorShape shape : kShapes) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      shape.dtype = dtype;
      Arena arena;
      const Lse args = ValidSoftmaxLse(shape, arena);
      EXPECT_TRUE(CheckLse(args).ok()) << CheckLse(args).message();
    }
  }
}

TEST(SoftmaxLseCall, Refuses) {
  const LseFaults faults = {
      {"none", "q", [](Lse& a) { a.q = {}; }},
      {"none", "k", [](Lse& a) { a.k = {}; }},
      {"none", "w", [](Lse& a) { a.w = {}; }},
      {"none", "lse", [](Lse& a) { a.lse = {}; }},
      {"loss without a teacher", "p", [](Lse& a) { a.p = {}; }},
      {"rank", "q", [](Lse& a) { DropDim(a.q); }},
      {"rank", "k", [](Lse& a) { DropDim(a.k); }},
      {"rank", "w", [](Lse& a) { DropDim(a.w); }},
      {"rank", "p", [](Lse& a) { DropDim(a.p); }},
      {"rank", "lse", [](Lse& a) { DropDim(a.lse); }},
      {"rank", "loss_rows", [](Lse& a) { DropDim(a.loss_rows); }},
      {"int32", "q", [](Lse& a) { a.q.dtype = DType::kInt32; }, kDtypeCode},
      {"not q's", "k", [](Lse& a) { a.k.dtype = DType::kFloat16; }, kDtypeCode},
      {"float64", "w", [](Lse& a) { a.w.dtype = DType::kFloat64; }, kDtypeCode},
      {"bf16", "p", [](Lse& a) { a.p.dtype = DType::kBFloat16; }, kDtypeCode},
      {"float64", "lse", [](Lse& a) { a.lse.dtype = DType::kFloat64; }, kDtypeCode},
      {"fp16", "loss_rows", [](Lse& a) { a.loss_rows.dtype = DType::kFloat16; }, kDtypeCode},
      {"no data", "lse", [](Lse& a) { a.lse.data = nullptr; }},
      {"no data", "loss_rows", [](Lse& a) { a.loss_rows.data = nullptr; }},
      {"lse over w", "lse", [](Lse& a) { a.lse.data = const_cast<void*>(a.w.data); }},
      {"loss over p", "loss_rows", [](Lse& a) { a.loss_rows.data = const_cast<void*>(a.p.data); }},
      {"loss over lse", "lse", [](Lse& a) { a.loss_rows.data = a.lse.data; }},
      {"mask 1", "mask_mode", [](Lse& a) { a.mask_mode = 1; }},
      {"layout", "layout_k", [](Lse& a) { a.layout_k = "tnd"; }},
  };
  for (const OperatorShape& shape : kShapes) ExpectLseRefuses(shape, faults);
  ExpectLseRefuses(kPacked, {
                                {"2 key heads", "k", [](Lse& a) { SetDim(a.k, 1, 2); }},
                                {"heads", "w", [](Lse& a) { SetDim(a.w, 1, 3); }},
                                {"columns", "p", [](Lse& a) { SetDim(a.p, 2, 2); }},
                                {"rows", "lse", [](Lse& a) { SetDim(a.lse, 1, 4); }},
                                {"rows", "loss_rows", [](Lse& a) { SetDim(a.loss_rows, 1, 4); }},
                                {"gaps", "lse", [](Lse& a) { a.lse.strides[1] = 2; }},
                            });
  ExpectLseRefuses(kPadded, {
                                {"columns", "p", [](Lse& a) { SetDim(a.p, 3, 6); }},
                                {"batches", "k", [](Lse& a) { SetDim(a.k, 0, 3); }},
                                {"rows", "lse", [](Lse& a) { SetDim(a.lse, 2, 4); }},
                            });
}

TEST(SoftmaxLseCall, RefusesPrefixSumsOfAPaddedSide) {
  test::ExpectSumsRefusedWherePadded(ValidSoftmaxLse, CheckLse, [](const Lse& args) {
    return DescribeSoftmaxLse(args, Precision::kNative);
  });
}

TEST(SoftmaxLseCall, NeedsNoTeacherWithoutALoss) {
  Arena arena;
  Lse args = ValidSoftmaxLse(kPacked, arena);
  args.loss_rows = {};
  EXPECT_TRUE(CheckLse(args).ok()) << "a teacher that nobody asked for";
  args.p = {};
  const Result<OperatorCall> call = CheckSoftmaxLse(args, Precision::kNative);
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_FALSE(call.value().p);
  EXPECT_FALSE(call.value().loss_rows);
  EXPECT_EQ(call.value().lse_out.data, args.lse.data);
}

}  // namespace
}  // namespace kindling
