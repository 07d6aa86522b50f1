#include "torch_api.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kindling::python {

struct DlpackExchange {
  uint32_t major_version, minor_version;
  const DlpackExchange* previous;
  void* allocate;
  void* managed_tensor_from_object;
  void* managed_tensor_to_object;
  int (*tensor_from_object)(void* object, nb::dlpack::dltensor* out);  // may be null
};

namespace {

nb::object Name(const char* name) { return nb::steal(PyUnicode_InternFromString(name)); }

// The table of a tensor type, or null.
const DlpackExchange* ExchangeOf(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  constexpr const char* kName = "dlpack_exchange_api";
  if (PyCapsule_IsValid(capsule.ptr(), kName) == 0) return nullptr;
  const auto* table =
      static_cast<const DlpackExchange*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  while (table != nullptr && table->major_version > 1) table = table->previous;
  if (table == nullptr || table->major_version != 1) return nullptr;
  return table->tensor_from_object != nullptr ? table : nullptr;
}

}  // namespace

nb::object ImportedModule(const char* name) {
  const nb::object key = Name(name);
  nb::object module = nb::steal(PyImport_GetModule(key.ptr()));
  if (!module.is_valid()) PyErr_Clear();
  return module;
}

nb::object ImportedTorch() {
  nb::object torch = ImportedModule("torch");
  // A module that is still being imported may lack its classes.
  if (torch.is_valid() && !(nb::hasattr(torch, "Tensor") && nb::hasattr(torch, "nn"))) {
    torch.reset();
  }
  return torch;
}

TorchApi::TorchApi(nb::handle torch)
    : tensor(torch.attr("Tensor")),
      parameter(torch.attr("nn").attr("Parameter")),
      strided(torch.attr("strided")),
      is_cpu(Name("is_cpu")),
      layout(Name("layout")),
      is_nested(Name("is_nested")),
      requires_grad(Name("requires_grad")),
      is_neg(Name("is_neg")),
      dtype(Name("dtype")),
      shape(Name("shape")),
      stride(Name("stride")),
      data_ptr(Name("data_ptr")),
      exchange_(ExchangeOf(tensor)) {
  for (size_t i = 0; i < dtypes.size(); ++i) dtypes[i] = torch.attr(kDTypes[i].name.data());
}

const TorchApi* TorchApi::Known() {
  static std::atomic<const TorchApi*> kept{nullptr};
  const TorchApi* api = kept.load(std::memory_order_acquire);
  if (api != nullptr) return api;
  const nb::object torch = ImportedTorch();
  if (!torch.is_valid()) return nullptr;
  const auto* made = new TorchApi(torch);
  if (kept.compare_exchange_strong(api, made, std::memory_order_acq_rel)) return made;
  delete made;  // another thread was first
  return api;
}

bool TorchApi::Describe(nb::handle object, nb::dlpack::dltensor& out) const {
  if (exchange_ == nullptr) return false;
  // A subclass may have no memory behind it, or other numbers than it shows.
  const nb::handle type = object.type();
  if (!type.is(tensor) && !type.is(parameter)) return false;
  if (exchange_->tensor_from_object(object.ptr(), &out) == 0) return true;
  PyErr_Clear();
  return false;
}

DType TorchApi::Dtype(nb::handle dtype) const {
  for (size_t i = 0; i < dtypes.size(); ++i) {
    if (dtype.is(dtypes[i])) return kDTypes[i].dtype;
  }
  return DType::kOther;
}

}  // namespace kindling::python
