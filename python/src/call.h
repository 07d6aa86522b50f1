// What every bound call does around the library's: named Python arguments in, Status out.
#ifndef KINDLING_PYTHON_SRC_CALL_H_
#define KINDLING_PYTHON_SRC_CALL_H_

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "array_view.h"
#include "kindling/status.h"
#include "kindling/tensor.h"
#include "problem/arguments.h"

namespace kindling::python {

// The arrays of one call, for as long as it lasts.
class Views {
 public:
  Views() = default;
  ~Views();
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  // A view of `object`: itself where it is one, else a new one. None is absent.
  // Errors: as ArrayView::Acquire.
  const ArrayView& Add(nb::handle object, const char* name, Access access, const char* expected);

  // The view of an argument, or null.
  const ArrayView* Find(std::string_view name) const;
  bool has_torch() const;
  // Elements of all arrays of rank 1: how much there is to check.
  int64_t num_elements() const;

 private:
  static constexpr size_t kMost = 24;  // above the arguments of any operator

  // Room for a view that is made only where it is needed: there are few in most calls.
  union Slot {
    Slot() {}
    ~Slot() {}
    ArrayView view;
  };

  std::array<Slot, kMost> owned_;
  std::array<const ArrayView*, kMost> all_;
  size_t num_owned_ = 0;
  size_t num_all_ = 0;
};

// Throws the Python error of a failed `status`: ValueError, TypeError for a dtype, MemoryError.
// Where the library met a dtype that it has no word for, the view of that argument has one.
void RaiseIfError(const Status& status, const Views* views = nullptr);

// Values by name, of a dict that has all of `keys` and no other. One that has them in that order is
// read without a search.
class NamedValues {
 public:
  // `keys`: the names, interned, in the order in which Next is called.
  NamedValues(const nb::dict& values, const char* what, const std::vector<PyObject*>& keys);
  nb::handle Next();

 private:
  nb::handle values_;
  const char* what_;
  const std::vector<PyObject*>& keys_;
  size_t next_ = 0;
  Py_ssize_t position_ = 0;  // in values_
};

// The keyword arguments of one call, as METH_FASTCALL hands them over: no dict is made of them.
class Keywords {
 public:
  // `names`: a tuple, or null where there are none.
  Keywords(PyObject* const* values, PyObject* names)
      : values_(values), names_(names), size_(names == nullptr ? 0 : PyTuple_Size(names)) {}

  // The value of an interned name; without a search where calls come in the order of the call.
  // Errors: TypeError where there is none.
  nb::handle Get(PyObject* key);
  Py_ssize_t size() const { return size_; }

 private:
  PyObject* const* values_;
  PyObject* names_;
  Py_ssize_t size_;
  Py_ssize_t next_ = 0;
};

// Those of them that `keys` name, in that order.
class KeywordValues {
 public:
  KeywordValues(Keywords& keywords, const std::vector<PyObject*>& keys)
      : keywords_(keywords), keys_(keys) {}
  nb::handle Next() { return keywords_.Get(keys_[next_++]); }

 private:
  Keywords& keywords_;
  const std::vector<PyObject*>& keys_;
  size_t next_ = 0;
};

// The names that a visitor of problem/arguments.h visits, as interned Python strings.
class Names {
 public:
  template <class Field>
  void operator()(ArgumentName name, Field&) {
    keys.push_back(PyUnicode_InternFromString(name.text));
  }
  std::vector<PyObject*> keys;
};

[[noreturn]] void RaiseNone(const char* name);

// Fills in the fields that it visits from named values.
template <class Values>
class Binder {
 public:
  Binder(Values values, Views& views, const char* expected)
      : values_(values), views_(views), expected_(expected) {}

  void operator()(ArgumentName name, ConstTensor& field) {
    const nb::handle value = values_.Next();
    if (value.is_none() && name.is_optional) return;
    if (value.is_none()) RaiseNone(name.text);
    field = views_.Add(value, name.text, Access::kRead, expected_).tensor();
  }
  void operator()(ArgumentName name, Tensor& field) {
    const nb::handle value = values_.Next();
    if (!value.is_none()) {
      field = views_.Add(value, name.text, Access::kWrite, expected_).writable_tensor();
    }
  }
  void operator()(ArgumentName name, std::string_view& field) {
    field = AsText(values_.Next(), name.text);
  }
  void operator()(ArgumentName name, int64_t& field) { field = AsInt64(values_.Next(), name.text); }
  void operator()(ArgumentName name, double& field) { field = AsDouble(values_.Next(), name.text); }

 private:
  Values values_;
  Views& views_;
  const char* expected_;
};

// The names of an operator's row arguments, and of its own.
template <class Args>
const std::vector<PyObject*>& RowKeys() {
  static const auto* const names = [] {
    auto* made = new Names();
    Args any;
    VisitRows(any, *made);
    return made;
  }();
  return names->keys;
}
template <class Args>
const std::vector<PyObject*>& OwnKeys() {
  static const auto* const names = [] {
    auto* made = new Names();
    Args any;
    VisitOwn(any, *made);
    return made;
  }();
  return names->keys;
}

// Which rows see which keys, from the dict that the package calls RowArguments.
template <class Args>
void BindRows(const nb::dict& rows, Args& args, Views& views) {
  VisitRows(args, Binder(NamedValues(rows, "rows", RowKeys<Args>()), views, kInt32Array));
}
template <class Args>
void BindRows(Keywords& keywords, Args& args, Views& views) {
  VisitRows(args, Binder(KeywordValues(keywords, RowKeys<Args>()), views, kInt32Array));
}

// An operator's own arguments, outputs included.
template <class Args>
void BindOwn(const nb::dict& own, Args& args, Views& views) {
  VisitOwn(args, Binder(NamedValues(own, "arguments", OwnKeys<Args>()), views, kAnyArray));
}

template <class Argument>
inline constexpr auto kNullable = nb::arg().none();

// Binds a function of positional arguments, each of which may be None: the function, or the library
// behind it, says what is wrong with that.
template <class Return, class... Arguments>
void DefNullable(nb::module_& module, const char* name, Return (*function)(Arguments...)) {
  module.def(name, function, kNullable<Arguments>...);
}

void BindMetadata(nb::module_& module);
void BindOperators(nb::module_& module);
void BindPlan(nb::module_& module);
void BindRuntime(nb::module_& module);

}  // namespace kindling::python

#endif  // KINDLING_PYTHON_SRC_CALL_H_
