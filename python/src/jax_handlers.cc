// The operators as handlers of XLA's foreign function interface, for kindling.jax. XLA calls them
// from its own threads, any number at once and without the GIL; nothing here touches Python but
// JaxHandlers.
//
// | handler      | operands: the five length tensors, then | results                             |
// | softmax_lse  | q, k, w [, p]                           | lse [, loss_rows, which needs p]    |
// | kl_loss_grad | q, k, w, p, lse [, row_scale]           | dq, dk, dw [, softmax_out]          |
// |              |                                         | [, loss_rows]                       |
// | teacher      | q, k [, lse]                            | p                                   |
// | total_loss   | only loss_rows and num_rows             | sum of loss_rows / num_rows, fp32   |
//
// Operands and results are dense. A length tensor that is absent has no elements, any other is left
// out at the end.
#include "jax_handlers.h"

#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kindling/operators.h"

namespace kindling::python {
namespace {

namespace ffi = xla::ffi;

DType AsDType(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return DType::kFloat32;
    case ffi::DataType::F16:
      return DType::kFloat16;
    case ffi::DataType::BF16:
      return DType::kBFloat16;
    case ffi::DataType::S32:
      return DType::kInt32;
    default:
      return DType::kOther;
  }
}

Tensor AsTensor(const ffi::AnyBuffer& buffer) {
  const ffi::AnyBuffer::Dimensions extents = buffer.dimensions();
  Tensor tensor;
  tensor.data = buffer.untyped_data();
  tensor.dtype = AsDType(buffer.element_type());
  tensor.rank = static_cast<int32_t>(extents.size());
  const int32_t num_kept = std::min(tensor.rank, kMaxRank);
  std::copy_n(extents.begin(), num_kept, tensor.shape.begin());
  int64_t stride = 1;
  for (int32_t axis = num_kept - 1; axis >= 0; --axis) {
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
  return tensor;
}

// Operands and results of a call, in turn; absent tensors after the last. The library says which of
// them it cannot do without.
class Buffers {
 public:
  Buffers(ffi::RemainingArgs operands, ffi::RemainingRets results)
      : operands_(operands), results_(results) {}

  void TakeLengths(SequenceArgs& args) {
    args.cu_seqlens_q = Operand();
    args.cu_seqlens_k = Operand();
    args.seqused_q = Operand();
    args.seqused_k = Operand();
    args.cmp_residual_k = Operand();
  }
  ConstTensor Operand() {
    auto operand = operands_.get<ffi::AnyBuffer>(next_operand_++);
    return operand.has_value() ? AsTensor(operand.value()) : Tensor();
  }
  Tensor Result() {
    auto result = results_.get<ffi::AnyBuffer>(next_result_++);
    return result.has_value() ? AsTensor(*result.value()) : Tensor();
  }

 private:
  ffi::RemainingArgs operands_;
  ffi::RemainingRets results_;
  size_t next_operand_ = 0;
  size_t next_result_ = 0;
};

// A call's arguments but the tensors of its own.
template <class Args>
Args SharedArguments(Buffers& buffers, std::string_view layout_q, std::string_view layout_k,
                     int64_t mask_mode, int64_t cmp_ratio) {
  Args args;
  buffers.TakeLengths(args);
  args.layout_q = layout_q;
  args.layout_k = layout_k;
  args.mask_mode = mask_mode;
  args.cmp_ratio = cmp_ratio;
  return args;
}

ffi::Error AsError(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(status.code() == StatusCode::kOutOfMemory ? ffi::ErrorCode::kResourceExhausted
                                                              : ffi::ErrorCode::kInvalidArgument,
                    status.message());
}

ffi::Error RunSoftmaxLse(ffi::RemainingArgs operands, ffi::RemainingRets results,
                         std::string_view layout_q, std::string_view layout_k, int64_t mask_mode,
                         int64_t cmp_ratio) {
  Buffers buffers(operands, results);
  auto args = SharedArguments<SoftmaxLseArgs>(buffers, layout_q, layout_k, mask_mode, cmp_ratio);
  args.q = buffers.Operand();
  args.k = buffers.Operand();
  args.w = buffers.Operand();
  args.p = buffers.Operand();
  args.lse = buffers.Result();
  args.loss_rows = buffers.Result();
  return AsError(SoftmaxLse(args));
}

ffi::Error RunKLLossGrad(ffi::RemainingArgs operands, ffi::RemainingRets results,
                         std::string_view layout_q, std::string_view layout_k, int64_t mask_mode,
                         int64_t cmp_ratio, bool return_softmax) {
  Buffers buffers(operands, results);
  auto args = SharedArguments<KLLossGradArgs>(buffers, layout_q, layout_k, mask_mode, cmp_ratio);
  args.q = buffers.Operand();
  args.k = buffers.Operand();
  args.w = buffers.Operand();
  args.p = buffers.Operand();
  args.lse = buffers.Operand();
  args.row_scale = buffers.Operand();
  args.dq = buffers.Result();
  args.dk = buffers.Result();
  args.dw = buffers.Result();
  if (return_softmax) args.softmax_out = buffers.Result();
  args.loss_rows = buffers.Result();
  return AsError(KLLossGrad(args));
}

ffi::Error RunTeacher(ffi::RemainingArgs operands, ffi::RemainingRets results,
                      std::string_view layout_q, std::string_view layout_k, int64_t mask_mode,
                      int64_t cmp_ratio, double softmax_scale, int64_t max_seqlen_k) {
  Buffers buffers(operands, results);
  auto args =
      SharedArguments<AttentionL1NormArgs>(buffers, layout_q, layout_k, mask_mode, cmp_ratio);
  args.q = buffers.Operand();
  args.k = buffers.Operand();
  args.lse = buffers.Operand();
  args.softmax_scale = softmax_scale;
  args.p = buffers.Result();
  // A width that is too small is max_seqlen_k's fault here, as the caller has given no p.
  const Status status = TeacherStride(args, max_seqlen_k).status();
  return AsError(status.ok() ? AttentionL1Norm(args) : status);
}

ffi::Error RunTotalLoss(ffi::Buffer<ffi::F32> loss_rows, ffi::BufferR0<ffi::S32> num_rows,
                        ffi::Result<ffi::BufferR0<ffi::F32>> total) {
  const double sum =
      TotalLoss(loss_rows.typed_data(), static_cast<int64_t>(loss_rows.element_count()));
  *total->typed_data() = static_cast<float>(sum / *num_rows.typed_data());
  return ffi::Error::Success();
}

auto Bind() {
  return ffi::Ffi::Bind()
      .RemainingArgs()
      .RemainingRets()
      .Attr<std::string_view>("layout_q")
      .Attr<std::string_view>("layout_k")
      .Attr<int64_t>("mask_mode")
      .Attr<int64_t>("cmp_ratio");
}

XLA_FFI_DEFINE_HANDLER_EXPLICIT(kSoftmaxLse, RunSoftmaxLse, Bind());
XLA_FFI_DEFINE_HANDLER_EXPLICIT(kKLLossGrad, RunKLLossGrad, Bind().Attr<bool>("return_softmax"));
XLA_FFI_DEFINE_HANDLER_EXPLICIT(kTeacher, RunTeacher,
                                Bind().Attr<double>("softmax_scale").Attr<int64_t>("max_seqlen_k"));
XLA_FFI_DEFINE_HANDLER_EXPLICIT(kTotalLoss, RunTotalLoss,
                                ffi::Ffi::Bind()
                                    .Arg<ffi::Buffer<ffi::F32>>()
                                    .Arg<ffi::BufferR0<ffi::S32>>()
                                    .Ret<ffi::BufferR0<ffi::F32>>());

nb::capsule Capsule(XLA_FFI_Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace

nb::dict JaxHandlers() {
  nb::dict handlers;
  handlers["softmax_lse"] = Capsule(kSoftmaxLse);
  handlers["kl_loss_grad"] = Capsule(kKLLossGrad);
  handlers["teacher"] = Capsule(kTeacher);
  handlers["total_loss"] = Capsule(kTotalLoss);
  return handlers;
}

}  // namespace kindling::python
