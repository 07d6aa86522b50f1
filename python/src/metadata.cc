#include "kindling/metadata.h"

#include <cstring>
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

nb::object PyMakeMetadata(const nb::dict& own, const nb::dict& rows, nb::handle num_cores,
                          nb::handle policy, nb::handle soc_version, nb::handle out) {
  MetadataArgs args;
  Views views;
  BindOwn(own, args, views);
  BindRows(rows, args, views);
  args.num_cores = NumCores(num_cores, soc_version);
  args.policy = AsPolicy(policy);
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

}  // namespace

void BindMetadata(nb::module_& module) { DefNullable(module, "make_metadata", &PyMakeMetadata); }

}  // namespace kindling::python
