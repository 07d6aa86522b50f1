#include "arguments.h"

namespace kindling::python {
namespace {

std::string Abridged(std::string text) {
  constexpr size_t kMaxShown = 40;
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "...");
  return text;
}

}  // namespace

void Raise(PyObject* type, std::string_view message) {
  PyObject* text =
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace");
  if (text != nullptr) {
    PyErr_SetObject(type, text);
    Py_DECREF(text);
  }
  throw nb::python_error();
}

std::string Text(nb::handle object) {
  PyObject* text = PyObject_Str(object.ptr());
  if (text != nullptr) {
    const nb::object owner = nb::steal(text);
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text, &size);
    if (data != nullptr) return std::string(data, static_cast<size_t>(size));
  }
  PyErr_Clear();
  return TypeName(object);
}

std::string TypeName(nb::handle object) {
  if (object.is_none()) return "None";
  return nb::type_name(object.type()).c_str();
}

int64_t AsInt64(nb::handle object, const char* name) {
  if (PyLong_CheckExact(object.ptr())) {  // nearly always, and at a third of the time
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
    if (overflow == 0) return value;
  }
  if (PyBool_Check(object.ptr()) || !PyIndex_Check(object.ptr())) {
    Raise(PyExc_TypeError, std::string(name) + ": expected an integer, got " + TypeName(object));
  }
  PyObject* number = PyNumber_Index(object.ptr());
  if (number == nullptr) {
    PyErr_Clear();
    Raise(PyExc_TypeError, std::string(name) + ": expected an integer, got " + TypeName(object));
  }
  const nb::object owner = nb::steal(number);
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (overflow != 0) {
    Raise(PyExc_ValueError,
          std::string(name) + ": expected an integer of 64 bits, got " + Abridged(Text(number)));
  }
  return value;
}

int64_t AsInt64Or(nb::handle object, const char* name, int64_t fallback) {
  return object.is_none() ? fallback : AsInt64(object, name);
}

double AsDouble(nb::handle object, const char* name) {
  const double value = PyBool_Check(object.ptr()) ? -1.0 : PyFloat_AsDouble(object.ptr());
  if (PyBool_Check(object.ptr()) || (value == -1.0 && PyErr_Occurred() != nullptr)) {
    PyErr_Clear();
    Raise(PyExc_TypeError, std::string(name) + ": expected a real number, got " + TypeName(object));
  }
  return value;
}

std::string_view AsText(nb::handle object, const char* name) {
  if (object.is_none()) return std::string_view();
  if (!PyUnicode_Check(object.ptr())) {
    Raise(PyExc_TypeError, std::string(name) + ": expected a str, got " + TypeName(object));
  }
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) {
    PyErr_Clear();
    Raise(PyExc_ValueError, std::string(name) + ": expected text, got lone surrogates");
  }
  return std::string_view(data, static_cast<size_t>(size));
}

}  // namespace kindling::python
