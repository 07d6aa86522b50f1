// The operators as handlers of XLA's foreign function interface, for kindling.jax. XLA calls them
// from its own threads, any number at once and without the GIL; nothing here touches Python but
// JaxHandlers.
//
// The handlers of operators are alike: `operands` and `results` name the arguments that are there,
// in turn, with commas; every other attribute has the name of its argument. total_loss takes
// loss_rows and num_rows and gives sum of loss_rows / num_rows in fp32. Operands and results are
// dense.
#include "jax_handlers.h"

#include <xla/ffi/api/ffi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "kindling/operators.h"
#include "problem/arguments.h"

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

// Calls take(name, index) for each of the comma-separated names.
template <class Take>
void ForNames(std::string_view names, Take take) {
  for (size_t index = 0; !names.empty(); ++index) {
    const size_t end = std::min(names.find(','), names.size());
    take(names.substr(0, end), index);
    names.remove_prefix(std::min(end + 1, names.size()));
  }
}

// Fills in the fields that it visits, where the call has an operand, a result or an attribute of
// their names. The library says which of them it cannot do without.
class Binder {
 public:
  Binder(const ffi::RemainingArgs& operands, const ffi::RemainingRets& results,
         const ffi::Dictionary& attributes)
      : operands_(operands), results_(results), attributes_(attributes) {
    operand_names_ = Attribute<std::string_view>("operands").value_or("");
    result_names_ = Attribute<std::string_view>("results").value_or("");
  }

  void operator()(ArgumentName name, ConstTensor& field) {
    ForNames(operand_names_, [&](std::string_view operand, size_t index) {
      if (operand != name.text) return;
      auto buffer = operands_.get<ffi::AnyBuffer>(index);
      if (buffer.has_value()) field = AsTensor(buffer.value());
    });
  }
  void operator()(ArgumentName name, Tensor& field) {
    ForNames(result_names_, [&](std::string_view result, size_t index) {
      if (result != name.text) return;
      auto buffer = results_.get<ffi::AnyBuffer>(index);
      if (buffer.has_value()) field = AsTensor(*buffer.value());
    });
  }
  template <class Value>
  void operator()(ArgumentName name, Value& field) {
    field = Attribute<Value>(name.text).value_or(field);
  }

  template <class Value>
  std::optional<Value> Attribute(std::string_view name) const {
    if (!attributes_.contains<Value>(name)) return std::nullopt;
    return attributes_.get<Value>(name).value();
  }

 private:
  const ffi::RemainingArgs& operands_;
  const ffi::RemainingRets& results_;
  const ffi::Dictionary& attributes_;
  std::string_view operand_names_, result_names_;
};

ffi::Error AsError(const Status& status) {
  if (status.ok()) return ffi::Error::Success();
  return ffi::Error(status.code() == StatusCode::kOutOfMemory ? ffi::ErrorCode::kResourceExhausted
                                                              : ffi::ErrorCode::kInvalidArgument,
                    status.message());
}

Status Run(const SoftmaxLseArgs& args, const Binder&) { return SoftmaxLse(args); }
Status Run(const KLLossGradArgs& args, const Binder&) { return KLLossGrad(args); }
Status Run(const AttentionL1NormArgs& args, const Binder& binder) {
  // A width that is too small is max_seqlen_k's fault here, as the caller has given no p.
  const auto max_seqlen_k = binder.Attribute<int64_t>("max_seqlen_k").value_or(0);
  const Status status = TeacherStride(args, max_seqlen_k).status();
  return status.ok() ? AttentionL1Norm(args) : status;
}

template <class Args>
ffi::Error RunOperator(ffi::RemainingArgs operands, ffi::RemainingRets results,
                       ffi::Dictionary attributes) {
  Args args;
  Binder binder(operands, results, attributes);
  VisitRows(args, binder);
  VisitOwn(args, binder);
  return AsError(Run(args, binder));
}

ffi::Error RunTotalLoss(ffi::Buffer<ffi::F32> loss_rows, ffi::BufferR0<ffi::S32> num_rows,
                        ffi::Result<ffi::BufferR0<ffi::F32>> total) {
  const double sum =
      TotalLoss(loss_rows.typed_data(), static_cast<int64_t>(loss_rows.element_count()));
  *total->typed_data() = static_cast<float>(sum / *num_rows.typed_data());
  return ffi::Error::Success();
}

auto Bind() { return ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs(); }

XLA_FFI_DEFINE_HANDLER_EXPLICIT(kSoftmaxLse, RunOperator<SoftmaxLseArgs>, Bind());
XLA_FFI_DEFINE_HANDLER_EXPLICIT(kKLLossGrad, RunOperator<KLLossGradArgs>, Bind());
XLA_FFI_DEFINE_HANDLER_EXPLICIT(kAttentionTeacher, RunOperator<AttentionL1NormArgs>, Bind());
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
  handlers["attention_teacher"] = Capsule(kAttentionTeacher);
  handlers["total_loss"] = Capsule(kTotalLoss);
  return handlers;
}

}  // namespace kindling::python
