#include "kindling/operators.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "base/checked_math.h"
#include "call.h"
#include "kindling/runtime.h"
#include "problem/operator_call.h"

namespace kindling::python {
namespace {

ConstTensor Read(const ArrayView* view) { return view != nullptr ? view->tensor() : ConstTensor(); }
Tensor Write(const ArrayView* view) { return view != nullptr ? view->writable_tensor() : Tensor(); }

// The arguments that the operators share, as the package hands them over: the five length tensors,
// layout_q, layout_k, mask_mode and cmp_ratio.
class SharedArguments {
 public:
  SharedArguments(const nb::tuple& shared, SequenceArgs& args) : owner_(shared) {
    if (shared.size() != 9) Raise(PyExc_ValueError, "shared: expected nine arguments");
    lengths_.Acquire(shared[0], shared[1], shared[2], shared[3], shared[4], args);
    args.layout_q = AsText(shared[5], "layout_q");
    args.layout_k = AsText(shared[6], "layout_k");
    args.mask_mode = AsInt64(shared[7], "mask_mode");
    args.cmp_ratio = AsInt64(shared[8], "cmp_ratio");
  }
  const LengthViews& lengths() const { return lengths_; }

 private:
  nb::tuple owner_;  // of the layouts' text
  LengthViews lengths_;
};

template <class Function>
auto WithoutGil(Function&& function) {
  nb::gil_scoped_release no_gil;
  return function();
}

enum class Precision : uint8_t { kFast, kDouble };

template <Precision precision>
void PySoftmaxLse(const ArrayView* q, const ArrayView* k, const ArrayView* w, const ArrayView* p,
                  const ArrayView* metadata, const nb::tuple& shared_arguments,
                  nb::handle num_threads, const ArrayView* lse, const ArrayView* loss_rows) {
  SoftmaxLseArgs args;
  const SharedArguments shared(shared_arguments, args);
  RunOptions options;
  options.num_threads = AsInt64Or(num_threads, "num_threads", 0);
  args.q = Read(q);
  args.k = Read(k);
  args.w = Read(w);
  args.p = Read(p);
  args.metadata = Read(metadata);
  args.lse = Write(lse);
  args.loss_rows = Write(loss_rows);
  const Status status = WithoutGil([&] {
    return precision == Precision::kFast ? SoftmaxLse(args, options) : reference::SoftmaxLse(args);
  });
  RaiseIfError(status, shared.lengths(), {q, k, w, p, metadata, lse, loss_rows});
}

template <Precision precision>
void PyKLLossGrad(const ArrayView* q, const ArrayView* k, const ArrayView* w, const ArrayView* p,
                  const ArrayView* lse, const ArrayView* row_scale, const ArrayView* metadata,
                  const nb::tuple& shared_arguments, nb::handle num_threads, const ArrayView* dq,
                  const ArrayView* dk, const ArrayView* dw, const ArrayView* softmax_out,
                  const ArrayView* loss_rows) {
  KLLossGradArgs args;
  const SharedArguments shared(shared_arguments, args);
  RunOptions options;
  options.num_threads = AsInt64Or(num_threads, "num_threads", 0);
  args.q = Read(q);
  args.k = Read(k);
  args.w = Read(w);
  args.p = Read(p);
  args.lse = Read(lse);
  args.row_scale = Read(row_scale);
  args.metadata = Read(metadata);
  args.dq = Write(dq);
  args.dk = Write(dk);
  args.dw = Write(dw);
  args.softmax_out = Write(softmax_out);
  args.loss_rows = Write(loss_rows);
  const Status status = WithoutGil([&] {
    return precision == Precision::kFast ? KLLossGrad(args, options) : reference::KLLossGrad(args);
  });
  RaiseIfError(status, shared.lengths(),
               {q, k, w, p, lse, row_scale, metadata, dq, dk, dw, softmax_out, loss_rows});
}

template <Precision precision>
void PyAttentionL1Norm(const ArrayView* q, const ArrayView* k, const ArrayView* lse,
                       const ArrayView* metadata, const nb::tuple& shared_arguments,
                       nb::handle softmax_scale, nb::handle num_threads, const ArrayView* p) {
  AttentionL1NormArgs args;
  const SharedArguments shared(shared_arguments, args);
  RunOptions options;
  options.num_threads = AsInt64Or(num_threads, "num_threads", 0);
  args.softmax_scale = AsDouble(softmax_scale, "softmax_scale");
  args.q = Read(q);
  args.k = Read(k);
  args.lse = Read(lse);
  args.metadata = Read(metadata);
  args.p = Write(p);
  const Status status = WithoutGil([&] {
    return precision == Precision::kFast ? AttentionL1Norm(args, options)
                                         : reference::AttentionL1Norm(args);
  });
  RaiseIfError(status, shared.lengths(), {q, k, lse, metadata, p});
}

// Dense outputs of a call that is only described. Their addresses are those of no memory, and far
// enough from each other.
class DescribedOutputs {
 public:
  Tensor Like(const ConstTensor& tensor, DType dtype) {
    return Dense(dtype, tensor.rank, tensor.shape);
  }
  // lse and its kind.
  Tensor PerRow(const ConstTensor& q, std::string_view layout_q) {
    if (layout_q == "TND") return Dense(DType::kFloat32, 2, {1, q.shape[0]});
    return Dense(DType::kFloat32, 3, {q.shape[0], 1, q.shape[1]});
  }
  Tensor Teacher(const ConstTensor& q, const ConstTensor& k, std::string_view layout_q,
                 std::string_view layout_k) {
    const int64_t width = k.shape[layout_k == "TND" ? 0 : 1];
    if (layout_q == "TND") return Dense(DType::kFloat32, 3, {q.shape[0], 1, width});
    return Dense(DType::kFloat32, 4, {q.shape[0], q.shape[1], 1, width});
  }

 private:
  static constexpr uintptr_t kApart = uintptr_t{1} << 60;

  Tensor Dense(DType dtype, int32_t rank, const std::array<int64_t, kMaxRank>& shape) {
    Tensor output(reinterpret_cast<void*>(next_address_ += kApart), dtype, rank, shape, {});
    int64_t stride = 1;
    for (int32_t axis = std::min(rank, kMaxRank) - 1; axis >= 0; --axis) {
      output.strides[axis] = stride;
      stride = SaturatingMul(stride, shape[axis]);
    }
    return output;
  }

  uintptr_t next_address_ = 0;
};

// For callers whose lengths are still to come: all errors that need no element of any array.
void PyDescribeSoftmaxLse(const ArrayView* q, const ArrayView* k, const ArrayView* w,
                          const ArrayView* p, const nb::tuple& shared_arguments) {
  SoftmaxLseArgs args;
  const SharedArguments shared(shared_arguments, args);
  args.q = Read(q);
  args.k = Read(k);
  args.w = Read(w);
  args.p = Read(p);
  DescribedOutputs outputs;
  args.lse = outputs.PerRow(args.q, args.layout_q);
  if (p != nullptr) args.loss_rows = outputs.PerRow(args.q, args.layout_q);
  RaiseIfError(DescribeSoftmaxLse(args, kindling::Precision::kNative), shared.lengths(),
               {q, k, w, p});
}

void PyDescribeKLLossGrad(const ArrayView* q, const ArrayView* k, const ArrayView* w,
                          const ArrayView* p, const ArrayView* lse, const ArrayView* row_scale,
                          const nb::tuple& shared_arguments) {
  KLLossGradArgs args;
  const SharedArguments shared(shared_arguments, args);
  args.q = Read(q);
  args.k = Read(k);
  args.w = Read(w);
  args.p = Read(p);
  args.lse = Read(lse);
  args.row_scale = Read(row_scale);
  DescribedOutputs outputs;
  args.dq = outputs.Like(args.q, args.q.dtype);
  args.dk = outputs.Like(args.k, args.q.dtype);
  args.dw = outputs.Like(args.w, DType::kFloat32);
  RaiseIfError(DescribeKLLossGrad(args, kindling::Precision::kNative), shared.lengths(),
               {q, k, w, p, lse, row_scale});
}

void PyDescribeAttentionL1Norm(const ArrayView* q, const ArrayView* k, const ArrayView* lse,
                               const nb::tuple& shared_arguments, nb::handle softmax_scale) {
  AttentionL1NormArgs args;
  const SharedArguments shared(shared_arguments, args);
  args.softmax_scale = AsDouble(softmax_scale, "softmax_scale");
  args.q = Read(q);
  args.k = Read(k);
  args.lse = Read(lse);
  DescribedOutputs outputs;
  args.p = outputs.Teacher(args.q, args.k, args.layout_q, args.layout_k);
  RaiseIfError(DescribeAttentionL1Norm(args, kindling::Precision::kNative), shared.lengths(),
               {q, k, lse});
}

int64_t PyTeacherStride(const ArrayView* q, const ArrayView* k, const ArrayView* lse,
                        const ArrayView* metadata, const nb::tuple& shared_arguments,
                        nb::handle softmax_scale, nb::handle max_seqlen_k) {
  AttentionL1NormArgs args;
  const SharedArguments shared(shared_arguments, args);
  args.softmax_scale = AsDouble(softmax_scale, "softmax_scale");
  args.q = Read(q);
  args.k = Read(k);
  args.lse = Read(lse);
  args.metadata = Read(metadata);
  const Result<int64_t> stride = TeacherStride(args, AsInt64(max_seqlen_k, "max_seqlen_k"));
  RaiseIfError(stride.status(), shared.lengths(), {q, k, lse, metadata});
  return stride.value();
}

double PyTotalLoss(const ArrayView& loss_rows) {
  const ConstTensor rows = loss_rows.tensor();
  int64_t num_rows = 1;
  bool is_dense = rows.rank >= 0 && rows.rank <= kMaxRank;
  for (int32_t axis = rows.rank - 1; is_dense && axis >= 0; --axis) {
    is_dense = rows.strides[axis] == num_rows;
    num_rows *= rows.shape[axis];
  }
  if (!is_dense) Raise(PyExc_ValueError, "loss_rows: expected a dense array, got a strided one");
  if (rows.dtype == DType::kFloat32) {
    return TotalLoss(static_cast<const float*>(rows.data), num_rows);
  }
  if (rows.dtype != DType::kFloat64) {
    Raise(PyExc_TypeError, "loss_rows: expected dtype float32, got " + loss_rows.DtypeName());
  }
  double total = 0;
  for (int64_t row = 0; row < num_rows; ++row) total += static_cast<const double*>(rows.data)[row];
  return total;
}

nb::tuple Shape(const ArrayView& view) {
  const ConstTensor tensor = view.tensor();
  nb::list shape;
  for (int32_t axis = 0; axis < tensor.rank && axis < kMaxRank; ++axis) {
    shape.append(tensor.shape[axis]);
  }
  return nb::tuple(shape);
}

const char* KindName(const ArrayView& view) {
  switch (view.kind()) {
    case ArrayKind::kTorch:
      return "torch";
    case ArrayKind::kDlpack:
      return "dlpack";
    default:
      return "numpy";
  }
}

// A NumPy array of 16-bit integers as a DLPack array of bfloat16.
nb::ndarray<nb::array_api> Bfloat16Array(const nb::ndarray<nb::c_contig>& bits) {
  if (bits.dtype().bits != 16) Raise(PyExc_TypeError, "bits: expected elements of 16 bits");
  std::vector<size_t> shape;
  for (size_t axis = 0; axis < bits.ndim(); ++axis) shape.push_back(bits.shape(axis));
  const nb::dlpack::dtype bfloat16{static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  const nb::object owner = nb::cast(bits);
  return nb::ndarray<nb::array_api>(bits.data(), shape.size(), shape.data(), owner, nullptr,
                                    bfloat16);
}

}  // namespace

void BindOperators(nb::module_& module) {
  nb::class_<ArrayView>(module, "View")
      .def(
          "__init__",
          [](ArrayView* self, nb::handle object, const char* name, bool writable, bool bfloat16) {
            if (object.is_none()) {
              Raise(PyExc_TypeError, std::string(name) + ": expected " + kAnyArray + ", got None");
            }
            new (self) ArrayView();
            try {
              self->Acquire(object, name, writable ? Access::kWrite : Access::kRead);
            } catch (...) {
              self->~ArrayView();
              throw;
            }
            if (bfloat16) self->ReadAsBfloat16();
          },
          nb::arg("array").none(), nb::arg("name"), nb::arg("writable") = false,
          nb::arg("bfloat16") = false)
      .def_prop_ro("kind", &KindName)
      .def_prop_ro("shape", &Shape)
      .def_prop_ro("dtype",
                   [](const ArrayView& self) { return nb::str(self.DtypeName().c_str()); });

  DefNullable(module, "softmax_lse", &PySoftmaxLse<Precision::kFast>);
  DefNullable(module, "reference_softmax_lse", &PySoftmaxLse<Precision::kDouble>);
  DefNullable(module, "kl_loss_grad", &PyKLLossGrad<Precision::kFast>);
  DefNullable(module, "reference_kl_loss_grad", &PyKLLossGrad<Precision::kDouble>);
  DefNullable(module, "attention_l1_norm", &PyAttentionL1Norm<Precision::kFast>);
  DefNullable(module, "reference_attention_l1_norm", &PyAttentionL1Norm<Precision::kDouble>);
  DefNullable(module, "describe_softmax_lse", &PyDescribeSoftmaxLse);
  DefNullable(module, "describe_kl_loss_grad", &PyDescribeKLLossGrad);
  DefNullable(module, "describe_attention_l1_norm", &PyDescribeAttentionL1Norm);
  DefNullable(module, "teacher_stride", &PyTeacherStride);
  module.def("total_loss", &PyTotalLoss);
  module.def("bfloat16_array", &Bfloat16Array);
}

}  // namespace kindling::python
