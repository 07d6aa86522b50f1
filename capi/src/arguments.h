// Arguments of the aclnn operators on their way to the core.
#ifndef KINDLING_CAPI_SRC_ARGUMENTS_H_
#define KINDLING_CAPI_SRC_ARGUMENTS_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "aclnn/acl_meta.h"
#include "errors.h"
#include "kindling/problem.h"
#include "kindling/tensor.h"
#include "ops/launch.h"

namespace kindling::acl {

struct NamedTensor {
  std::string_view name;
  const aclTensor* tensor;
};

// ACLNN_ERR_PARAM_NULLPTR for the first that is null.
Failure RequireTensors(std::initializer_list<NamedTensor> tensors);

// What the operators share, as their C functions get it.
struct SequenceInputs {
  const aclTensor* cu_seqlens_q;
  const aclTensor* cu_seqlens_k;
  const aclTensor* seqused_q;
  const aclTensor* seqused_k;
  const aclTensor* cmp_residual_k;
  const char* layout_q;
  const char* layout_k;
  int64_t mask_mode;
  int64_t cmp_ratio;
};

// Arguments of the core that own the text of their layouts, so that they outlive the C call. They
// must not move once bound.
template <class Args>
struct OwnedArgs : Args {
  OwnedArgs() = default;
  OwnedArgs(const OwnedArgs&) = delete;
  OwnedArgs& operator=(const OwnedArgs&) = delete;

  std::string layout_q_text, layout_k_text;
};

// Binds tensors one by one; the first failure is kept and ends the rest.
class Binder {
 public:
  void Bind(std::string_view name, const aclTensor* handle, Tensor& out);
  void Bind(std::string_view name, const aclTensor* handle, ConstTensor& out);

  template <class Args>
  void BindSequence(const SequenceInputs& inputs, OwnedArgs<Args>& args) {
    BindTensors(inputs, args);
    args.layout_q = KeepText(inputs.layout_q, args.layout_q_text);
    args.layout_k = KeepText(inputs.layout_k, args.layout_k_text);
    if constexpr (!std::is_base_of_v<MetadataArgs, Args>) DropPaddedSums(args);
    args.mask_mode = inputs.mask_mode;
    args.cmp_ratio = inputs.cmp_ratio;
  }

  const Status& status() const { return status_; }

 private:
  void BindTensors(const SequenceInputs& inputs, SequenceArgs& args);
  // The vendor's operators ignore cu_seqlens of a BSND side, which the core refuses. Its metadata
  // operators check them there.
  static void DropPaddedSums(SequenceArgs& args);
  // A null text stays a null view, which the core refuses by name.
  static std::string_view KeepText(const char* text, std::string& storage);

  Status status_;
};

// The shape of a call whose descriptors have been checked.
CallShape ShapeOf(const SequenceArgs& args, const ConstTensor& q, const ConstTensor& k);

}  // namespace kindling::acl

#endif  // KINDLING_CAPI_SRC_ARGUMENTS_H_
