#include "call.h"

#include <string>
#include <string_view>

#include "arguments.h"

namespace kindling::python {
namespace {

constexpr std::string_view kUnnamedDtype = "another dtype";

PyObject* ErrorType(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidDtype:
      return PyExc_TypeError;
    case StatusCode::kOutOfMemory:
      return PyExc_MemoryError;
    default:
      return PyExc_ValueError;
  }
}

bool IsAbout(std::string_view message, const ArrayView& view) {
  return !view.name().empty() && message.starts_with(view.name() + ":");
}

}  // namespace

void LengthViews::Acquire(nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle seqused_q,
                          nb::handle seqused_k, nb::handle cmp_residual_k, SequenceArgs& args) {
  const auto acquire = [](ArrayView& view, nb::handle object, const char* name) {
    view.Acquire(object, name, Access::kRead, kInt32Array);
    return view.tensor();
  };
  args.cu_seqlens_q = acquire(views[0], cu_seqlens_q, "cu_seqlens_q");
  args.cu_seqlens_k = acquire(views[1], cu_seqlens_k, "cu_seqlens_k");
  args.seqused_q = acquire(views[2], seqused_q, "seqused_q");
  args.seqused_k = acquire(views[3], seqused_k, "seqused_k");
  args.cmp_residual_k = acquire(views[4], cmp_residual_k, "cmp_residual_k");
}

int64_t LengthViews::num_elements() const {
  int64_t num_elements = 0;
  for (const ArrayView& view : views) {
    if (view.tensor().rank == 1) num_elements += view.tensor().shape[0];
  }
  return num_elements;
}

void RaiseIfError(const Status& status, const LengthViews& lengths,
                  std::initializer_list<const ArrayView*> others) {
  if (status.ok()) return;
  std::string message = status.message();
  if (status.code() == StatusCode::kInvalidDtype && message.ends_with(kUnnamedDtype)) {
    const ArrayView* culprit = nullptr;
    for (const ArrayView& view : lengths.views) {
      if (IsAbout(message, view)) culprit = &view;
    }
    for (const ArrayView* view : others) {
      if (view != nullptr && IsAbout(message, *view)) culprit = view;
    }
    if (culprit != nullptr) {
      message.resize(message.size() - kUnnamedDtype.size());
      message += culprit->DtypeName();
    }
  }
  Raise(ErrorType(status.code()), message);
}

}  // namespace kindling::python
