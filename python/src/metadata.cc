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
    RaiseIfError(profile.status(), {}, {});
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

nb::object PyMakeMetadata(nb::handle num_heads_q, nb::handle num_heads_k, nb::handle head_dim,
                          nb::handle cu_seqlens_q, nb::handle cu_seqlens_k, nb::handle seqused_q,
                          nb::handle seqused_k, nb::handle cmp_residual_k, nb::handle batch_size,
                          nb::handle max_seqlen_q, nb::handle max_seqlen_k, nb::handle layout_q,
                          nb::handle layout_k, nb::handle mask_mode, nb::handle cmp_ratio,
                          nb::handle num_cores, nb::handle policy, nb::handle soc_version,
                          nb::handle out) {
  MetadataArgs args;
  args.num_heads_q = AsInt64(num_heads_q, "num_heads_q");
  args.num_heads_k = AsInt64(num_heads_k, "num_heads_k");
  args.head_dim = AsInt64(head_dim, "head_dim");
  LengthViews lengths;
  lengths.Acquire(cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, cmp_residual_k, args);
  args.batch_size = AsInt64(batch_size, "batch_size");
  args.max_seqlen_q = AsInt64(max_seqlen_q, "max_seqlen_q");
  args.max_seqlen_k = AsInt64(max_seqlen_k, "max_seqlen_k");
  args.layout_q = AsText(layout_q, "layout_q");
  args.layout_k = AsText(layout_k, "layout_k");
  args.mask_mode = AsInt64(mask_mode, "mask_mode");
  args.cmp_ratio = AsInt64(cmp_ratio, "cmp_ratio");
  args.num_cores = NumCores(num_cores, soc_version);
  args.policy = AsPolicy(policy);
  ArrayView out_view;
  out_view.Acquire(out, "metadata", Access::kWrite, kInt32Array);

  bool use_torch = false;
  for (const ArrayView& view : lengths.views) use_torch |= view.kind() == ArrayKind::kTorch;
  nb::object record = out.is_none() ? NewRecord(use_torch) : nb::borrow(out);
  ArrayView record_view;
  if (out.is_none()) record_view.Acquire(record, "metadata", Access::kWrite);
  const Tensor tensor = (out.is_none() ? record_view : out_view).writable_tensor();

  Status status;
  {
    std::optional<nb::gil_scoped_release> no_gil;
    if (args.policy == PlanPolicy::kBalanced || lengths.num_elements() > kManyLengths) {
      no_gil.emplace();
    }
    status = MakeMetadata(args, tensor);
  }
  RaiseIfError(status, lengths, {&out_view});
  return record;
}

}  // namespace

void BindMetadata(nb::module_& module) { DefNullable(module, "make_metadata", &PyMakeMetadata); }

}  // namespace kindling::python
