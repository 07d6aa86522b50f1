#include "call.h"

#include <new>
#include <string>

namespace kindling::python {
namespace {

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

}  // namespace

Views::~Views() {
  for (size_t i = 0; i < num_owned_; ++i) owned_[i].view.~ArrayView();
}

const ArrayView& Views::Add(nb::handle object, const char* name, Access access,
                            const char* expected) {
  static const nb::handle view_type = nb::type<ArrayView>();
  const ArrayView* view = nullptr;
  if (object.type().is(view_type)) {
    view = nb::inst_ptr<ArrayView>(object);
  } else {
    ArrayView& made = *new (&owned_.at(num_owned_).view) ArrayView();
    ++num_owned_;
    made.Acquire(object, name, access, expected);
    view = &made;
  }
  all_.at(num_all_++) = view;
  return *view;
}

const ArrayView* Views::Find(std::string_view name) const {
  for (size_t i = 0; i < num_all_; ++i) {
    if (all_[i]->name() == name) return all_[i];
  }
  return nullptr;
}

bool Views::has_torch() const {
  for (size_t i = 0; i < num_all_; ++i) {
    if (all_[i]->kind() == ArrayKind::kTorch) return true;
  }
  return false;
}

int64_t Views::num_elements() const {
  int64_t num_elements = 0;
  for (size_t i = 0; i < num_all_; ++i) {
    const ConstTensor tensor = all_[i]->tensor();
    if (tensor.rank == 1) num_elements += tensor.shape[0];
  }
  return num_elements;
}

void RaiseIfError(const Status& status, const Views* views) {
  if (status.ok()) return;
  const ArrayView* culprit = nullptr;
  if (status.lacks_dtype_name() && views != nullptr) culprit = views->Find(status.argument());
  Raise(ErrorType(status.code()),
        culprit != nullptr ? status.MessageWithDtype(culprit->DtypeName()) : status.message());
}

NamedValues::NamedValues(const nb::dict& values, const char* what,
                         const std::vector<PyObject*>& keys)
    : values_(values), what_(what), keys_(keys) {
  if (values.size() != keys.size()) {
    Raise(PyExc_TypeError, std::string(what) + ": expected " + std::to_string(keys.size()) +
                               " names, got " + std::to_string(values.size()));
  }
}

nb::handle NamedValues::Next() {
  PyObject* key = keys_[next_++];
  PyObject* found = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = position_;
  if (PyDict_Next(values_.ptr(), &position, &found, &value) != 0 && found == key) {
    position_ = position;
    return value;
  }
  value = PyDict_GetItemWithError(values_.ptr(), key);
  if (value == nullptr) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    Raise(PyExc_TypeError, std::string(what_) + ": expected " + Text(key) + ", got none");
  }
  return value;
}

nb::handle Keywords::Get(PyObject* key) {
  if (next_ < size_ && PyTuple_GetItem(names_, next_) == key) return values_[next_++];
  for (Py_ssize_t i = 0; i < size_; ++i) {
    PyObject* name = PyTuple_GetItem(names_, i);
    if (name == key || PyUnicode_Compare(name, key) == 0) {
      next_ = i + 1;
      return values_[i];
    }
  }
  Raise(PyExc_TypeError, "arguments: expected " + Text(key) + ", got none");
}

void RaiseNone(const char* name) {
  Raise(PyExc_TypeError, std::string(name) + ": expected " + kAnyArray + ", got None");
}

}  // namespace kindling::python
