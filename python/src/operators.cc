#include "kindling/operators.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "base/checked_math.h"
#include "base/message.h"
#include "call.h"
#include "kindling/runtime.h"
#include "kindling/schema.h"
#include "plan/record.h"
#include "problem/operator_call.h"

namespace kindling::python {
namespace {

template <class Function>
auto WithoutGil(Function&& function) {
  nb::gil_scoped_release no_gil;
  return function();
}

// A call's arguments by name: `own` holds those of the operator alone, `rows` which rows see which
// keys.
template <class Args>
struct Call {
  Call(const nb::dict& own, const nb::dict& rows) {
    BindOwn(own, args, views);
    BindRows(rows, args, views);
  }

  Args args;
  Views views;
};

template <class Args>
using Operator = Status (*)(const Args& args, const RunOptions& options);
template <class Args>
using Reference = Status (*)(const Args& args);

template <class Args, Operator<Args> run>
void PyRun(const nb::dict& own, const nb::dict& rows, nb::handle num_threads) {
  const Call<Args> call(own, rows);
  RunOptions options;
  options.num_threads = AsInt64Or(num_threads, "num_threads", 0);
  RaiseIfError(WithoutGil([&] { return run(call.args, options); }), &call.views);
}

template <class Args>
using Check = Result<OperatorCall> (*)(const Args& args, Precision precision);

// The definition takes no record; one of another problem is refused here as by the operators.
template <class Args, Reference<Args> run, Check<Args> check>
void PyRunReference(const nb::dict& own, const nb::dict& rows, nb::handle num_threads) {
  const Call<Args> call(own, rows);
  AsInt64Or(num_threads, "num_threads", 0);
  const Result<OperatorCall> checked = check(call.args, Precision::kDouble);
  RaiseIfError(checked.status(), &call.views);
  RaiseIfError(CheckMetadataInput(call.args.metadata, checked.value().problem), &call.views);
  RaiseIfError(WithoutGil([&] { return run(call.args); }), &call.views);
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

void DescribeOutputs(SoftmaxLseArgs& args, DescribedOutputs& outputs) {
  args.lse = outputs.PerRow(args.q, args.layout_q);
  if (args.p.rank >= 0) args.loss_rows = outputs.PerRow(args.q, args.layout_q);
}
void DescribeOutputs(KLLossGradArgs& args, DescribedOutputs& outputs) {
  args.dq = outputs.Like(args.q, args.q.dtype);
  args.dk = outputs.Like(args.k, args.q.dtype);
  args.dw = outputs.Like(args.w, DType::kFloat32);
}
void DescribeOutputs(AttentionL1NormArgs& args, DescribedOutputs& outputs) {
  args.p = outputs.Teacher(args.q, args.k, args.layout_q, args.layout_k);
}

// For callers whose lengths or memory are still to come: all errors that need no element of any
// array. Outputs that are not given are those that the library would accept.
template <class Args, Status (*describe)(const Args&, Precision)>
void PyDescribe(const nb::dict& own, const nb::dict& rows) {
  Call<Args> call(own, rows);
  DescribedOutputs outputs;
  DescribeOutputs(call.args, outputs);
  RaiseIfError(describe(call.args, Precision::kNative), &call.views);
}

int64_t PyTeacherStride(const nb::dict& own, const nb::dict& rows, nb::handle max_seqlen_k) {
  const Call<AttentionL1NormArgs> call(own, rows);
  const Result<int64_t> stride = TeacherStride(call.args, AsInt64(max_seqlen_k, "max_seqlen_k"));
  RaiseIfError(stride.status(), &call.views);
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

nb::object Shape(const ArrayView& view) {
  const ConstTensor tensor = view.tensor();
  const int32_t rank = std::clamp(tensor.rank, 0, kMaxRank);
  nb::object shape = nb::steal(PyTuple_New(rank));
  if (!shape.is_valid()) throw nb::python_error();
  for (int32_t axis = 0; axis < rank; ++axis) {
    PyTuple_SetItem(shape.ptr(), axis, PyLong_FromLongLong(tensor.shape[axis]));
  }
  return shape;
}

// A view without memory, of a shape and a dtype that an array will have.
ArrayView* DescribedView(const char* name, const nb::tuple& shape, nb::str dtype) {
  auto view = std::make_unique<ArrayView>();
  std::vector<int64_t> extents;
  for (const nb::handle extent : shape) extents.push_back(AsInt64(extent, name));
  view->Describe(name, extents, std::move(dtype));
  return view.release();
}

nb::list Described(std::span<const ArgumentDescription> arguments) {
  const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
  nb::list described;
  for (const ArgumentDescription& argument : arguments) {
    nb::dict fields;
    fields["name"] = text(argument.name);
    fields["kind"] = text(argument.kind);
    fields["type"] = text(argument.type);
    fields["shape"] = text(argument.shape);
    fields["default"] = text(argument.default_value);
    fields["doc"] = text(argument.doc);
    described.append(fields);
  }
  return described;
}

nb::dict DescribeOperators() {
  nb::dict operators;
  for (const std::string_view name : OperatorNames()) {
    operators[nb::str(name.data(), name.size())] = Described(DescribeOperator(name));
  }
  return operators;
}

nb::object KindName(const ArrayView& view) {
  static PyObject* const numpy = PyUnicode_InternFromString("numpy");
  static PyObject* const torch = PyUnicode_InternFromString("torch");
  static PyObject* const dlpack = PyUnicode_InternFromString("dlpack");
  switch (view.kind()) {
    case ArrayKind::kTorch:
      return nb::borrow(torch);
    case ArrayKind::kDlpack:
      return nb::borrow(dlpack);
    default:
      return nb::borrow(numpy);
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

// An operator, its definition in double precision, and what its descriptors alone tell.
template <class Args, Operator<Args> run, Reference<Args> reference, Check<Args> check,
          Status (*describe)(const Args&, Precision)>
void DefOperator(nb::module_& module, const std::string& name) {
  DefNullable(module, name.c_str(), &PyRun<Args, run>);
  DefNullable(module, ("reference_" + name).c_str(), &PyRunReference<Args, reference, check>);
  DefNullable(module, ("describe_" + name).c_str(), &PyDescribe<Args, describe>);
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

  module.def("described_view", &DescribedView);
  DefOperator<SoftmaxLseArgs, &SoftmaxLse, &reference::SoftmaxLse, &CheckSoftmaxLse,
              &DescribeSoftmaxLse>(module, "softmax_lse");
  DefOperator<KLLossGradArgs, &KLLossGrad, &reference::KLLossGrad, &CheckKLLossGrad,
              &DescribeKLLossGrad>(module, "kl_loss_grad");
  DefOperator<AttentionL1NormArgs, &AttentionL1Norm, &reference::AttentionL1Norm,
              &CheckAttentionL1Norm, &DescribeAttentionL1Norm>(module, "attention_teacher");
  DefNullable(module, "teacher_stride", &PyTeacherStride);
  nb::list dtypes;
  for (const NamedDType& named : kDTypes) {
    dtypes.append(nb::str(named.name.data(), named.name.size()));
  }
  module.attr("DTYPES") = nb::tuple(dtypes);
  module.def("describe_operators", &DescribeOperators);
  module.def("describe_rows", [] { return Described(DescribeRows()); });
  module.def("total_loss", &PyTotalLoss);
  module.def("bfloat16_array", &Bfloat16Array);
}

}  // namespace kindling::python
