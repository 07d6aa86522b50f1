#include "kindling/metadata.h"

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>

#include "arguments.h"
#include "call.h"
#include "kindling/runtime.h"
#include "torch_api.h"

namespace kindling::python {
namespace {

// Below this many lengths the call takes a few microseconds, less than it can cost to get the GIL
// back from another thread (sys.getswitchinterval(), 5 ms).
constexpr int64_t kManyLengths = 4096;

// An uninitialised int32 array of 64 words: torch's where `use_torch`, else NumPy's.
nb::object NewRecord(bool use_torch) {
  if (use_torch) {
    const nb::object torch = ImportedTorch();
    return torch.attr("empty")(kMetadataWords, nb::arg("dtype") = torch.attr("int32"),
                               nb::arg("device") = "cpu");
  }
  static PyObject* const empty =
      nb::object(nb::module_::import_("numpy").attr("empty")).release().ptr();
  static PyObject* const int32 =
      nb::object(nb::module_::import_("numpy").attr("dtype")("int32")).release().ptr();
  return nb::handle(empty)(kMetadataWords, nb::handle(int32));
}

// num_cores, else the cores of soc_version, else the host's threads. The name is checked in any
// case.
int64_t NumCores(nb::handle num_cores, nb::handle soc_version) {
  int64_t by_default = GetNumThreads();
  if (!soc_version.is_none()) {
    const Result<SocProfile> profile = ParseSocVersion(AsText(soc_version, "soc_version"));
    RaiseIfError(profile.status());
    by_default = profile.value().num_cores;
  }
  return AsInt64Or(num_cores, "num_cores", by_default);
}

PlanPolicy AsPolicy(nb::handle policy) {
  const std::string_view text = AsText(policy, "policy");
  if (text == "rows") return PlanPolicy::kRows;
  if (text == "balanced") return PlanPolicy::kBalanced;
  Raise(PyExc_ValueError, "policy: expected \"rows\" or \"balanced\", got " +
                              (text.data() == nullptr ? "None" : "\"" + std::string(text) + "\""));
}

// The operator's own arguments, in the order of VisitOwn.
class OwnValues {
 public:
  explicit OwnValues(PyObject* const* values) : values_(values) {}
  nb::handle Next() { return *values_++; }

 private:
  PyObject* const* values_;
};

// The arguments after those.
enum Other : size_t { kNumCores, kSocVersion, kPolicy, kOut, kNumOthers };

nb::object MakeRecord(PyObject* const* own, PyObject* const* others, Keywords rows) {
  MetadataArgs args;
  Views views;
  VisitOwn(args, Binder(OwnValues(own), views, kAnyArray));
  BindRows(rows, args, views);
  args.num_cores = NumCores(others[kNumCores], others[kSocVersion]);
  args.policy = AsPolicy(others[kPolicy]);
  const nb::handle out = others[kOut];
  const bool use_torch = views.has_torch();
  const int64_t num_lengths = views.num_elements();
  const bool is_new = out.is_none();
  const nb::object record = is_new ? NewRecord(use_torch) : nb::borrow(out);
  const Tensor tensor =
      views.Add(record, "metadata", Access::kWrite, kInt32Array).writable_tensor();

  Status status;
  {
    std::optional<nb::gil_scoped_release> no_gil;
    if (args.policy == PlanPolicy::kBalanced || num_lengths > kManyLengths) no_gil.emplace();
    status = MakeMetadata(args, tensor);
  }
  RaiseIfError(status, &views);
  return record;
}

// A plain function of CPython, since it is called before every step: elsewhere names come as a
// dict, and to make that takes a third of this whole call. CPython itself makes one of more names
// than these, which is why the operator's own arguments come without.
PyObject* PyMakeMetadata(PyObject*, PyObject* const* values, Py_ssize_t num_positional,
                         PyObject* names) {
  try {
    const size_t num_own = OwnKeys<MetadataArgs>().size();
    const size_t num_rows = RowKeys<MetadataArgs>().size();
    const Keywords rows(values + num_positional, names);
    if (static_cast<size_t>(num_positional) != num_own + kNumOthers ||
        static_cast<size_t>(rows.size()) != num_rows) {
      Raise(PyExc_TypeError, "arguments: expected " + std::to_string(num_own + kNumOthers) +
                                 " and " + std::to_string(num_rows) + " by name, got " +
                                 std::to_string(num_positional) + " and " +
                                 std::to_string(rows.size()));
    }
    return MakeRecord(values, values + num_own, rows).release().ptr();
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace

void BindMetadata(nb::module_& module) {
  static PyMethodDef method = {
      "make_metadata", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&PyMakeMetadata)),
      METH_FASTCALL | METH_KEYWORDS, nullptr};
  const nb::object function = nb::steal(PyCFunction_NewEx(&method, nullptr, nullptr));
  if (!function.is_valid()) throw nb::python_error();
  module.attr(method.ml_name) = function;
}

}  // namespace kindling::python
