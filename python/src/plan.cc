// Records read back, device names, and the metadata operator as data.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "call.h"
#include "kindling/metadata.h"
#include "kindling/problem.h"
#include "problem/arguments.h"

namespace kindling::python {
namespace {

nb::str ToStr(std::string_view text) { return nb::str(text.data(), text.size()); }

// A NumPy array that owns `values`.
template <class Integer>
nb::object ToNumpy(std::vector<Integer> values) {
  auto* owned = new std::vector<Integer>(std::move(values));
  const nb::capsule owner(owned,
                          [](void* p) noexcept { delete static_cast<std::vector<Integer>*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy, Integer, nb::ndim<1>>(owned->data(), {owned->size()}, owner),
      nb::rv_policy::reference);
}

// The 64 words of a record in an int32 array.
Metadata ReadRecord(const ConstTensor& tensor, const std::string& dtype_name) {
  if (tensor.rank != 1) {
    Raise(PyExc_ValueError, "metadata: expected rank 1, got rank " + std::to_string(tensor.rank));
  }
  if (tensor.dtype != DType::kInt32) {
    Raise(PyExc_TypeError, "metadata: expected dtype int32, got " + dtype_name);
  }
  if (tensor.shape[0] != kMetadataWords) {
    Raise(PyExc_ValueError, "metadata: expected length " + std::to_string(kMetadataWords) +
                                ", got " + std::to_string(tensor.shape[0]));
  }
  int32_t words[kMetadataWords];
  for (int64_t word = 0; word < kMetadataWords; ++word) {
    words[word] = static_cast<const int32_t*>(tensor.data)[word * tensor.strides[0]];
  }
  Metadata record;
  std::memcpy(&record, words, sizeof(record));
  return record;
}

// Copies the arguments that it visits into a dict by name: arrays become NumPy's.
class Copier {
 public:
  void operator()(ArgumentName name, const ConstTensor& field) {
    if (!field.has_elements() || field.rank != 1 || field.dtype != DType::kInt32) {  // not read
      copies[name.text] = nb::none();
      return;
    }
    const auto* element = static_cast<const int32_t*>(field.data);
    std::vector<int32_t> values;
    for (int64_t i = 0; i < field.shape[0]; ++i) values.push_back(element[i * field.strides[0]]);
    copies[name.text] = ToNumpy(std::move(values));
  }
  void operator()(ArgumentName name, std::string_view field) { copies[name.text] = ToStr(field); }
  void operator()(ArgumentName name, int64_t field) { copies[name.text] = field; }

  nb::dict copies;
};

// A decoded record, the problem it is for, and copies of the arguments that said both.
struct PyPlan {
  PyPlan(const Metadata& metadata, Plan decoded, Problem from, nb::dict copies)
      : record(metadata),
        plan(std::move(decoded)),
        problem(std::move(from)),
        arguments(std::move(copies)) {}

  int64_t CheckRow(nb::handle row) const {
    const int64_t index = AsInt64(row, "row");
    if (index < 0 || index >= plan.num_rows()) {
      Raise(PyExc_ValueError, "row: expected in [0, " + std::to_string(plan.num_rows()) +
                                  "), got " + std::to_string(index));
    }
    return index;
  }

  Metadata record;
  Plan plan;
  Problem problem;
  nb::dict arguments;
};

PyPlan* MakePlan(nb::handle metadata, nb::handle batch_size, nb::handle max_seqlen_q,
                 nb::handle max_seqlen_k, const nb::dict& rows) {
  MetadataArgs args;
  Views views;
  BindRows(rows, args, views);
  args.batch_size = AsInt64(batch_size, "batch_size");
  args.max_seqlen_q = AsInt64(max_seqlen_q, "max_seqlen_q");
  args.max_seqlen_k = AsInt64(max_seqlen_k, "max_seqlen_k");
  const ArrayView& record_view = views.Add(metadata, "metadata", Access::kRead, kInt32Array);
  if (record_view.kind() == ArrayKind::kAbsent) {
    Raise(PyExc_TypeError, "metadata: expected an int32 array, got None");
  }

  Result<Problem> problem = Problem::Create(args);
  RaiseIfError(problem.status(), &views);
  const Metadata record = ReadRecord(record_view.tensor(), record_view.DtypeName());
  Result<Plan> plan = [&] {
    const nb::gil_scoped_release no_gil;
    return Plan::Decode(record, problem.value());
  }();
  RaiseIfError(plan.status(), &views);

  Copier copier;
  VisitRows(args, copier);
  copier(ArgumentName{"metadata"}, record_view.tensor());
  copier(ArgumentName{"batch_size"}, args.batch_size);
  copier(ArgumentName{"max_seqlen_q"}, args.max_seqlen_q);
  copier(ArgumentName{"max_seqlen_k"}, args.max_seqlen_k);
  return new PyPlan(record, plan.value(), problem.value(), std::move(copier.copies));
}

nb::object RowsOf(const PyPlan& self, nb::handle core) {
  const int64_t index = AsInt64(core, "core");
  if (index < 0 || index >= self.plan.num_cores()) {
    Raise(PyExc_ValueError, "core: expected in [0, " + std::to_string(self.plan.num_cores()) +
                                "), got " + std::to_string(index));
  }
  const CoreRows rows = self.plan.RowsOfCore(index);
  return ToNumpy(std::vector<int64_t>(rows.begin(), rows.end()));
}

nb::object CostOfCores(const PyPlan& self) {
  Result<std::vector<int64_t>> costs = [&] {
    const nb::gil_scoped_release no_gil;
    return self.plan.CostOfCores();
  }();
  RaiseIfError(costs.status());
  return ToNumpy(std::move(costs).value());
}

nb::object NumRowsOfCores(const PyPlan& self) {
  std::vector<int64_t> counts(self.record.used_core_num);
  for (size_t core = 0; core < counts.size(); ++core) {
    counts[core] = self.plan.RowsOfCore(static_cast<int64_t>(core)).size();
  }
  return ToNumpy(std::move(counts));
}

nb::dict Locate(const PyPlan& self, nb::handle row) {
  const RowCoordinates at = self.problem.Locate(self.CheckRow(row));
  nb::dict fields;
  fields["batch"] = at.batch;
  fields["position"] = at.position;
  fields["storage_row"] = at.storage_row;
  fields["key_begin"] = at.key_begin;
  fields["num_visible_keys"] = at.num_visible_keys;
  return fields;
}

const char* LawName(const PyPlan& self) {
  switch (self.plan.law()) {
    case DealingLaw::kCyclic:
      return "cyclic";
    case DealingLaw::kSnake:
      return "snake";
    case DealingLaw::kLevelled:
      break;
  }
  return "levelled";
}

nb::dict SocProfileOf(nb::handle soc_version) {
  const Result<SocProfile> profile = ParseSocVersion(AsText(soc_version, "soc_version"));
  RaiseIfError(profile.status());
  const SocProfile& found = profile.value();
  nb::dict fields;
  fields["family"] = ToStr(found.family);
  fields["num_cores"] = found.num_cores;
  fields["num_vector_cores"] = found.num_vector_cores;
  fields["base_block_size"] = found.base_block_size;
  return fields;
}

}  // namespace

void BindPlan(nb::module_& module) {
  nb::class_<PyPlan>(module, "Plan")
      .def_prop_ro("law", &LawName)
      .def_prop_ro("num_rows", [](const PyPlan& self) { return self.plan.num_rows(); })
      .def_prop_ro("num_cores", [](const PyPlan& self) { return self.plan.num_cores(); })
      .def_prop_ro("num_used_cores", [](const PyPlan& self) { return self.record.used_core_num; })
      .def_prop_ro("pair_cost", [](const PyPlan& self) { return self.plan.pair_cost(); })
      .def_prop_ro("row_overhead", [](const PyPlan& self) { return self.plan.row_overhead(); })
      .def("rows_of_core", &RowsOf, nb::arg("core").none())
      .def(
          "core_of_row",
          [](const PyPlan& self, nb::handle row) {
            return self.plan.CoreOfRow(self.CheckRow(row));
          },
          nb::arg("row").none())
      .def(
          "cost_of_row",
          [](const PyPlan& self, nb::handle row) {
            return self.plan.CostOfRow(self.CheckRow(row));
          },
          nb::arg("row").none())
      .def_prop_ro("arguments", [](const PyPlan& self) { return self.arguments; })
      .def("cost_of_cores", &CostOfCores)
      .def("num_rows_of_cores", &NumRowsOfCores)
      .def("locate", &Locate, nb::arg("row").none());
  DefNullable(module, "make_plan", &MakePlan);
  DefNullable(module, "soc_profile", &SocProfileOf);
}

}  // namespace kindling::python
