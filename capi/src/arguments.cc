#include "arguments.h"

#include "base/checked_math.h"
#include "base/message.h"
#include "tensor.h"

namespace kindling::acl {

Failure RequireTensors(std::initializer_list<NamedTensor> tensors) {
  for (const NamedTensor& named : tensors) {
    if (named.tensor == nullptr) {
      return {ACLNN_ERR_PARAM_NULLPTR, Concat(named.name, ": expected a tensor, got null")};
    }
  }
  return {};
}

void Binder::Bind(std::string_view name, const aclTensor* handle, Tensor& out) {
  if (!status_.ok()) return;
  const Result<Tensor> view = ViewOf(name, handle);
  if (view.ok()) {
    out = view.value();
  } else {
    status_ = view.status();
  }
}

void Binder::Bind(std::string_view name, const aclTensor* handle, ConstTensor& out) {
  Tensor view;
  Bind(name, handle, view);
  out = view;
}

void Binder::BindTensors(const SequenceInputs& inputs, SequenceArgs& args) {
  Bind("cu_seqlens_q", inputs.cu_seqlens_q, args.cu_seqlens_q);
  Bind("cu_seqlens_k", inputs.cu_seqlens_k, args.cu_seqlens_k);
  Bind("seqused_q", inputs.seqused_q, args.seqused_q);
  Bind("seqused_k", inputs.seqused_k, args.seqused_k);
  Bind("cmp_residual_k", inputs.cmp_residual_k, args.cmp_residual_k);
}

void Binder::DropPaddedSums(SequenceArgs& args) {
  if (args.layout_q == "BSND") args.cu_seqlens_q = {};
  if (args.layout_k == "BSND") args.cu_seqlens_k = {};
}

std::string_view Binder::KeepText(const char* text, std::string& storage) {
  if (text == nullptr) return {};
  storage = text;
  return storage;
}

CallShape ShapeOf(const SequenceArgs& args, const ConstTensor& q, const ConstTensor& k) {
  const bool packed_q = args.layout_q == "TND";
  const bool packed_k = args.layout_k == "TND";
  CallShape shape;
  shape.dtype = q.dtype;
  shape.num_heads = q.shape[packed_q ? 1 : 2];
  shape.head_dim = q.shape[packed_q ? 2 : 3];
  shape.num_key_heads = k.shape[packed_k ? 1 : 2];
  shape.num_batches = packed_q ? args.cu_seqlens_q.shape[0] - 1 : q.shape[0];
  shape.num_keys = packed_k ? k.shape[0] : SaturatingMul(k.shape[0], k.shape[1]);
  return shape;
}

}  // namespace kindling::acl
