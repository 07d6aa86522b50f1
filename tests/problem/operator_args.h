// Valid calls of the floating-point operators to spoil, one thing at a time. Nothing is computed:
// only what describes the tensors counts.
#ifndef KINDLING_TESTS_PROBLEM_OPERATOR_ARGS_H_
#define KINDLING_TESTS_PROBLEM_OPERATOR_ARGS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kindling/operators.h"
#include "kindling/problem.h"
#include "kindling/status.h"
#include "kindling/tensor.h"
#include "problem/lengths_case.h"

namespace kindling::test {

// Memory for tensors, a stretch of its own for each, with so much room before and behind it that
// the strides of these tests stay inside.
class Arena {
 public:
  Tensor New(DType dtype, std::initializer_list<int64_t> shape) {
    int64_t size = 1;
    for (const int64_t extent : shape) size *= extent;
    blocks_.push_back(std::make_unique<double[]>(size + 2 * kMargin));
    return Tensor(blocks_.back().get() + kMargin, dtype, shape);
  }

 private:
  static constexpr int64_t kMargin = 256;
  std::vector<std::unique_ptr<double[]>> blocks_;
};

// Two sequences. Packed: 2 + 3 rows, 3 + 1 keys. Padded: 3 rows, 4 keys each.
struct OperatorShape {
  Layout layout_q = Layout::kTnd;
  Layout layout_k = Layout::kTnd;
  DType dtype = DType::kFloat32;  // of q and k
  DType wide = DType::kFloat32;   // of everything else
  int64_t num_heads = 4;
  int64_t num_key_heads = 1;
  int64_t head_dim = 8;

  bool packed_q() const { return layout_q == Layout::kTnd; }
  bool packed_k() const { return layout_k == Layout::kTnd; }
  int64_t width() const { return packed_q() || packed_k() ? 6 : 4; }  // of p

  Tensor Rows(Arena& arena, DType type, int64_t a, int64_t b) const {
    return packed_q() ? arena.New(type, {5, a, b}) : arena.New(type, {2, 3, a, b});
  }
  Tensor Keys(Arena& arena) const {
    return packed_k() ? arena.New(dtype, {4, num_key_heads, head_dim})
                      : arena.New(dtype, {2, 4, num_key_heads, head_dim});
  }
  Tensor PerHead(Arena& arena) const {
    return packed_q() ? arena.New(wide, {5, num_heads}) : arena.New(wide, {2, 3, num_heads});
  }
  Tensor PerRow(Arena& arena) const {
    return packed_q() ? arena.New(wide, {1, 5}) : arena.New(wide, {2, 1, 3});
  }
  void SetLengths(SequenceArgs& args) const {
    static constexpr int32_t kCuQ[] = {0, 2, 5};
    static constexpr int32_t kCuK[] = {0, 3, 4};
    args.layout_q = packed_q() ? "TND" : "BSND";
    args.layout_k = packed_k() ? "TND" : "BSND";
    if (packed_q()) args.cu_seqlens_q = ConstTensor(kCuQ, DType::kInt32, {3});
    if (packed_k()) args.cu_seqlens_k = ConstTensor(kCuK, DType::kInt32, {3});
  }
};

inline SoftmaxLseArgs ValidSoftmaxLse(const OperatorShape& shape, Arena& arena) {
  SoftmaxLseArgs args;
  shape.SetLengths(args);
  args.q = shape.Rows(arena, shape.dtype, shape.num_heads, shape.head_dim);
  args.k = shape.Keys(arena);
  args.w = shape.PerHead(arena);
  args.p = shape.Rows(arena, shape.wide, 1, shape.width());
  args.lse = shape.PerRow(arena);
  args.loss_rows = shape.PerRow(arena);
  return args;
}

inline KLLossGradArgs ValidKLLossGrad(const OperatorShape& shape, Arena& arena) {
  KLLossGradArgs args;
  shape.SetLengths(args);
  args.q = shape.Rows(arena, shape.dtype, shape.num_heads, shape.head_dim);
  args.k = shape.Keys(arena);
  args.w = shape.PerHead(arena);
  args.p = shape.Rows(arena, shape.wide, 1, shape.width());
  args.lse = shape.PerRow(arena);
  args.row_scale = shape.PerRow(arena);
  args.dq = shape.Rows(arena, shape.dtype, shape.num_heads, shape.head_dim);
  args.dk = shape.Keys(arena);
  args.dw = shape.PerHead(arena);
  args.softmax_out = shape.Rows(arena, shape.wide, 1, shape.width());
  args.loss_rows = shape.PerRow(arena);
  return args;
}

inline AttentionL1NormArgs ValidAttentionL1Norm(const OperatorShape& shape, Arena& arena) {
  AttentionL1NormArgs args;
  shape.SetLengths(args);
  args.q = shape.Rows(arena, shape.dtype, shape.num_heads, shape.head_dim);
  args.k = shape.Keys(arena);
  args.lse = shape.packed_q() ? arena.New(shape.wide, {1, 5, shape.num_heads})
                              : arena.New(shape.wide, {2, 1, 3, shape.num_heads});
  args.p = shape.Rows(arena, shape.wide, 1, shape.width());
  return args;
}

// Something wrong with a call, and what the refusal must name.
template <class Args>
struct OperatorFault {
  std::string_view what;
  std::string_view argument;
  void (*apply)(Args&);
  StatusCode code = StatusCode::kInvalidArgument;
};

// Makes each fault in a call of `shape` on its own. `valid` makes the call, `check` judges it.
template <class Args, class Valid, class Check>
void ExpectRefused(const OperatorShape& shape, const std::vector<OperatorFault<Args>>& faults,
                   Valid valid, Check check) {
  for (const OperatorFault<Args>& fault : faults) {
    Arena arena;
    Args args = valid(shape, arena);
    fault.apply(args);
    const Status status = check(args);
    EXPECT_EQ(status.code(), fault.code) << fault.what << ": " << status.message();
    EXPECT_EQ(ArgumentOf(status), fault.argument) << fault.what << ": " << status.message();
    EXPECT_TRUE(HasMessageForm(status)) << fault.what << ": " << status.message();
  }
}

// Prefix sums of a BSND side are refused by name, whatever they hold; those without elements are
// absent. `check` and `describe` judge a call with and without its values.
template <class Valid, class Check, class Describe>
void ExpectSumsRefusedWherePadded(Valid valid, Check check, Describe describe) {
  static constexpr int32_t kSums[] = {0, 3, 6, 999};
  static constexpr Layout kLayouts[] = {Layout::kBsnd, Layout::kTnd};
  for (const Layout layout_q : kLayouts) {
    for (const Layout layout_k : kLayouts) {
      for (const bool of_q : {false, true}) {
        if ((of_q ? layout_q : layout_k) == Layout::kTnd) continue;
        const std::string side = of_q ? "q" : "k";
        for (const int64_t size : {0, 3, 4}) {
          Arena arena;
          auto args = valid(OperatorShape{.layout_q = layout_q, .layout_k = layout_k}, arena);
          (of_q ? args.cu_seqlens_q : args.cu_seqlens_k) =
              ConstTensor(kSums, DType::kInt32, {size});
          for (const Status& status : {check(args), describe(args)}) {
            if (size == 0) {
              EXPECT_TRUE(status.ok()) << status.message();
              continue;
            }
            EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
            EXPECT_EQ(status.message(), "cu_seqlens_" + side + ": expected layout_" + side +
                                            " \"TND\" where it is given, got layout_" + side +
                                            " \"BSND\"");
          }
        }
      }
    }
  }
}

// Edits of tensors that faults are made of.
template <class T>
void SetDim(T& tensor, int axis, int64_t extent) {
  tensor.shape[axis] = extent;
}
// Drops the first dim.
template <class T>
void DropDim(T& tensor) {
  --tensor.rank;
  for (int axis = 0; axis + 1 < kMaxRank; ++axis) {
    tensor.shape[axis] = tensor.shape[axis + 1];
    tensor.strides[axis] = tensor.strides[axis + 1];
  }
}

}  // namespace kindling::test

#endif  // KINDLING_TESTS_PROBLEM_OPERATOR_ARGS_H_
