#include "problem/operator_call.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/checked_math.h"
#include "base/message.h"
#include "problem/lengths.h"
#include "problem/tensor_memory.h"

namespace kindling {
namespace {

// An extent that a tensor must have, and what messages call it.
struct Extent {
  int64_t value = 0;
  std::string_view name;
};
constexpr int64_t kAny = -1;

std::string Expected(std::initializer_list<Extent> extents) {
  std::string out = "(";
  for (const Extent& extent : extents) {
    if (out.size() > 1) out += ", ";
    if (extent.value == kAny) {
      out += extent.name;
    } else {
      out += Concat(extent.name, "=", extent.value);
    }
  }
  return out + (extents.size() == 1 ? ",)" : ")");
}

// Data is asked for where there are elements; elsewhere a pointer may still not be misaligned.
Status CheckMemory(std::string_view name, const ConstTensor& tensor) {
  if (tensor.data == nullptr && !tensor.has_elements()) return Status();
  return CheckData(name, tensor.data, tensor.dtype);
}

// Presence, rank and the extents that are known.
Status CheckShape(std::string_view name, const ConstTensor& tensor,
                  std::initializer_list<Extent> extents) {
  if (tensor.rank < 0) {
    return InvalidArgument(name, ": expected a tensor of shape ", Expected(extents), ", got none");
  }
  bool fits = tensor.rank == static_cast<int32_t>(extents.size());
  if (fits) {
    int64_t size = 1;
    int32_t axis = 0;
    for (const Extent& extent : extents) {
      const int64_t got = tensor.shape[axis++];
      fits = fits && got >= 0 && (extent.value == kAny || extent.value == got);
      size = SaturatingMul(size, std::max<int64_t>(got, 0));
    }
    if (fits && size == kInt64Max) {
      return InvalidArgument(name, ": expected fewer than 2^63 elements, got shape ",
                             ShapeString(tensor));
    }
  }
  if (!fits) {
    return InvalidArgument(name, ": expected shape ", Expected(extents), ", got ",
                           ShapeString(tensor));
  }
  KINDLING_RETURN_IF_ERROR(CheckStrides(name, tensor));
  return CheckMemory(name, tensor);
}

Status CheckDType(std::string_view name, DType expected, DType got) {
  if (expected == got) return Status();
  return InvalidDtype(name, ": expected dtype ", DTypeName(expected), ", got ", DTypeName(got));
}

Status CheckInputDType(std::string_view name, DType got, Precision precision) {
  if (precision == Precision::kDouble) return CheckDType(name, DType::kFloat64, got);
  if (got == DType::kFloat32 || got == DType::kFloat16 || got == DType::kBFloat16) return Status();
  return InvalidDtype(name, ": expected dtype bfloat16, float16 or float32, got ", DTypeName(got));
}

Status CheckDense(std::string_view name, const ConstTensor& tensor) {
  if (!tensor.has_elements()) return Status();
  int64_t stride = 1;
  for (int32_t axis = tensor.rank - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] != 1 && tensor.strides[axis] != stride) {
      return InvalidArgument(name, ": expected a dense row-major output, got stride ",
                             tensor.strides[axis], " in dim ", axis, " of shape ",
                             ShapeString(tensor));
    }
    stride *= tensor.shape[axis];
  }
  return Status();
}

// The bytes between the lowest and the highest element, half open; empty without elements.
std::pair<uintptr_t, uintptr_t> ByteRange(const ConstTensor& tensor) {
  if (!tensor.has_elements() || tensor.data == nullptr) return {0, 0};
  const int64_t element_bytes = ElementBytes(tensor.dtype);
  uintptr_t low = reinterpret_cast<uintptr_t>(tensor.data);
  uintptr_t high = low + element_bytes;
  for (int32_t axis = 0; axis < std::min(tensor.rank, kMaxRank); ++axis) {
    if (tensor.shape[axis] == 1) continue;  // its stride may be anything
    // Unsigned, since the strides of a metadata record have not been looked at yet.
    const auto reach = static_cast<int64_t>(static_cast<uint64_t>(tensor.shape[axis] - 1) *
                                            static_cast<uint64_t>(tensor.strides[axis]) *
                                            static_cast<uint64_t>(element_bytes));
    (reach < 0 ? low : high) += static_cast<uintptr_t>(reach);
  }
  return {low, high};
}

struct NamedTensor {
  std::string_view name;
  ConstTensor tensor;
};

// Outputs are written while inputs are still read, so neither may share memory with the other.
Status CheckNoOverlap(std::initializer_list<NamedTensor> inputs,
                      std::initializer_list<NamedTensor> outputs) {
  const auto overlap = [](const NamedTensor& a, const NamedTensor& b) {
    const auto [a_low, a_high] = ByteRange(a.tensor);
    const auto [b_low, b_high] = ByteRange(b.tensor);
    return a_low < b_high && b_low < a_high;
  };
  for (const NamedTensor* output = outputs.begin(); output != outputs.end(); ++output) {
    for (const NamedTensor& input : inputs) {
      if (overlap(*output, input)) {
        return InvalidArgument(output->name, ": expected memory of its own, got an overlap with ",
                               input.name);
      }
    }
    for (const NamedTensor* other = output + 1; other != outputs.end(); ++other) {
      if (overlap(*output, *other)) {
        return InvalidArgument(output->name, ": expected memory of its own, got an overlap with ",
                               other->name);
      }
    }
  }
  return Status();
}

// Views of checked tensors. `row_axis` is the row dim in TND; BSND has a batch dim before it.
RowView ViewRowsHeadsElements(const ConstTensor& tensor, Layout layout) {
  RowView view;
  view.data = tensor.data;
  view.dtype = tensor.dtype;
  view.packed = layout == Layout::kTnd;
  const int32_t row_axis = view.packed ? 0 : 1;
  view.batch_stride = view.packed ? 0 : tensor.strides[0];
  view.row_stride = tensor.strides[row_axis];
  view.head_stride = tensor.strides[row_axis + 1];
  if (tensor.rank > row_axis + 2) view.element_stride = tensor.strides[row_axis + 2];
  return view;
}

// lse and its kind: (B,1,S1[,G]) or (1,T1[,G]), a head dim of extent 1 before the row dim.
RowView ViewLse(const ConstTensor& tensor, Layout layout) {
  RowView view;
  view.data = tensor.data;
  view.dtype = tensor.dtype;
  view.packed = layout == Layout::kTnd;
  const int32_t row_axis = view.packed ? 1 : 2;
  view.batch_stride = view.packed ? 0 : tensor.strides[0];
  view.row_stride = tensor.strides[row_axis];
  if (tensor.rank > row_axis + 1) view.head_stride = tensor.strides[row_axis + 1];
  return view;
}

// Whether the values of the length tensors are there to be read.
enum class Stage { kDescriptors, kValues };

// Walks the checks that the three operators share and keeps what later ones need.
class Checker {
 public:
  Checker(const SequenceArgs& args, Precision precision, Stage stage)
      : args_(args),
        precision_(precision),
        stage_(stage),
        wide_(precision == Precision::kDouble ? DType::kFloat64 : DType::kFloat32) {}

  Status Attributes() {
    const Result<kindling::Attributes> attributes = CheckSequenceAttributes(args_);
    if (!attributes.ok()) return attributes.status();
    attributes_ = attributes.value();
    KINDLING_RETURN_IF_ERROR(
        CheckSumsArePacked("cu_seqlens_q", args_.cu_seqlens_q, "layout_q", attributes_.layout_q));
    return CheckSumsArePacked("cu_seqlens_k", args_.cu_seqlens_k, "layout_k", attributes_.layout_k);
  }

  // q and k; fills in the operands. `dim` names the width, `heads` the head count of q.
  Status QueriesAndKeys(const ConstTensor& q, const ConstTensor& k, std::string_view heads,
                        std::string_view dim, bool one_key_head) {
    KINDLING_RETURN_IF_ERROR(
        packed_q() ? CheckShape("q", q, {{kAny, "T1"}, {kAny, heads}, {kAny, dim}})
                   : CheckShape("q", q, {{kAny, "B"}, {kAny, "S1"}, {kAny, heads}, {kAny, dim}}));
    KINDLING_RETURN_IF_ERROR(CheckInputDType("q", q.dtype, precision_));
    const int32_t head_axis = packed_q() ? 1 : 2;
    const int64_t num_heads = q.shape[head_axis];
    const int64_t head_dim = q.shape[head_axis + 1];
    if (num_heads < 1) return InvalidArgument("q: expected ", heads, " >= 1, got ", num_heads);
    if (head_dim < 1) return InvalidArgument("q: expected ", dim, " >= 1, got ", head_dim);

    const Extent key_heads = one_key_head ? Extent{1, "N2"} : Extent{kAny, "Gk"};
    const Extent width{head_dim, dim};
    KINDLING_RETURN_IF_ERROR(
        packed_k() ? CheckShape("k", k, {{kAny, "T2"}, key_heads, width})
                   : CheckShape("k", k, {{kAny, "B"}, {kAny, "S2"}, key_heads, width}));
    KINDLING_RETURN_IF_ERROR(CheckDType("k", q.dtype, k.dtype));
    const int64_t num_key_heads = k.shape[packed_k() ? 1 : 2];
    if (num_key_heads < 1 || num_heads % num_key_heads != 0) {
      return InvalidArgument("k: expected a number of key heads that divides ", heads, "=",
                             num_heads, ", got ", num_key_heads);
    }
    operands_ = {num_heads, num_key_heads, head_dim, ViewRowsHeadsElements(q, layout_q()),
                 ViewRowsHeadsElements(k, layout_k())};
    dense_q_ = packed_q() ? DenseSide{0, "q.shape[0]", q.shape[0], "q.shape[0]"}
                          : DenseSide{q.shape[0], "q.shape[0]", q.shape[1], "q.shape[1]"};
    dense_k_ = packed_k() ? DenseSide{0, "k.shape[0]", k.shape[0], "k.shape[0]"}
                          : DenseSide{k.shape[0], "k.shape[0]", k.shape[1], "k.shape[1]"};
    return Status();
  }

  // A tensor with one value per row and head, (B,S1,N1) or (T1,N1).
  Status PerHead(std::string_view name, const ConstTensor& tensor) {
    const Extent heads{operands_.num_heads, "N1"};
    KINDLING_RETURN_IF_ERROR(packed_q() ? CheckShape(name, tensor, {rows(), heads})
                                        : CheckShape(name, tensor, {batches(), rows(), heads}));
    return CheckDType(name, wide_, tensor.dtype);
  }

  // A tensor with one value per row, (B,1,S1) or (1,T1).
  Status PerRow(std::string_view name, const ConstTensor& tensor) {
    const Extent one{1, "N2"};
    KINDLING_RETURN_IF_ERROR(packed_q() ? CheckShape(name, tensor, {one, rows()})
                                        : CheckShape(name, tensor, {batches(), one, rows()}));
    return CheckDType(name, wide_, tensor.dtype);
  }

  // The main attention's lse, (B,1,S1,G) or (1,T1,G).
  Status PerRowAndHead(std::string_view name, const ConstTensor& tensor) {
    const Extent one{1, "N2"};
    const Extent heads{operands_.num_heads, "G"};
    KINDLING_RETURN_IF_ERROR(packed_q()
                                 ? CheckShape(name, tensor, {one, rows(), heads})
                                 : CheckShape(name, tensor, {batches(), one, rows(), heads}));
    return CheckDType(name, wide_, tensor.dtype);
  }

  // A tensor with one value per row and key, (B,S1,1,S2) or (T1,1,stride). Its last dim is checked
  // against the lengths by TeacherWidth.
  Status Teacher(std::string_view name, const ConstTensor& tensor, Extent width) {
    const Extent one{1, "N2"};
    KINDLING_RETURN_IF_ERROR(packed_q()
                                 ? CheckShape(name, tensor, {rows(), one, width})
                                 : CheckShape(name, tensor, {batches(), rows(), one, width}));
    return CheckDType(name, wide_, tensor.dtype);
  }

  // An output that mirrors `like`.
  Status Output(std::string_view name, const ConstTensor& output, const ConstTensor& like,
                std::string_view like_name, DType dtype) {
    if (output.rank < 0) {
      return InvalidArgument(name, ": expected an output of shape ", ShapeString(like),
                             ", got none");
    }
    bool same = output.rank == like.rank;
    for (int32_t axis = 0; same && axis < like.rank; ++axis) {
      same = output.shape[axis] == like.shape[axis];
    }
    if (!same) {
      return InvalidArgument(name, ": expected the shape of ", like_name, ", ", ShapeString(like),
                             ", got ", ShapeString(output));
    }
    KINDLING_RETURN_IF_ERROR(CheckDType(name, dtype, output.dtype));
    return OutputMemory(name, output);
  }

  static Status OutputMemory(std::string_view name, const ConstTensor& output) {
    KINDLING_RETURN_IF_ERROR(CheckMemory(name, output));
    return CheckDense(name, output);
  }

  // Lengths: descriptors, values, and what they say about the tensors' dims.
  Status Lengths() {
    const Result<kindling::Lengths> lengths =
        DescribeLengths(args_, attributes_, dense_q_, dense_k_, nullptr);
    if (!lengths.ok()) return lengths.status();
    KINDLING_RETURN_IF_ERROR(CheckDenseBatch(lengths.value().q, dense_q_));
    KINDLING_RETURN_IF_ERROR(CheckDenseBatch(lengths.value().k, dense_k_));
    if (lengths.value().num_batches > kInt32Max) {
      return InvalidArgument(lengths.value().batch_name, ": expected a batch count <= ", kInt32Max,
                             ", got ", lengths.value().num_batches);
    }
    if (stage_ == Stage::kDescriptors) return Status();
    Result<Problem> problem = MakeProblem(lengths.value());
    if (!problem.ok()) return problem.status();
    const auto check_total = [](const SideLengths& side, int64_t num_tokens) {
      const IntVector& cu = side.cu_seqlens;
      if (side.layout != Layout::kTnd || cu[cu.size - 1] == num_tokens) return Status();
      return InvalidArgument(side.cu_name, "[", cu.size - 1, "]: expected ", num_tokens, " = ",
                             side.length_name, ", got ", cu[cu.size - 1]);
    };
    KINDLING_RETURN_IF_ERROR(check_total(lengths.value().q, dense_q_.length));
    KINDLING_RETURN_IF_ERROR(check_total(lengths.value().k, dense_k_.length));
    problem_ = std::move(problem).value();
    return Status();
  }

  // Prefix sums say where packed sequences begin; who gives them for padded ones means "TND". The
  // metadata operator takes them, as its order of checks is fixed.
  static Status CheckSumsArePacked(std::string_view name, const ConstTensor& cu_seqlens,
                                   std::string_view layout_name, Layout layout) {
    if (layout == Layout::kTnd || !cu_seqlens.has_elements()) return Status();
    return InvalidArgument(name, ": expected ", layout_name, " \"TND\" where it is given, got ",
                           layout_name, " \"BSND\"");
  }

  // In BSND the batch dim is the batch count, whatever seqused says.
  static Status CheckDenseBatch(const SideLengths& side, const DenseSide& dense) {
    if (side.layout != Layout::kBsnd || !side.seqused.present() ||
        side.seqused.size == dense.num_batches) {
      return Status();
    }
    return InvalidArgument(side.seqused_name, ": expected length ", dense.num_batches, " = ",
                           dense.batch_name, ", got ", side.seqused.size);
  }

  // The last dim of p: S2 if both layouts are BSND, else at least the largest visible key count.
  Status TeacherWidth(std::string_view name, int64_t width) const {
    if (!packed_q() && !packed_k()) {
      if (width == dense_k_.length) return Status();
      return InvalidArgument(name, ": expected last dim S2=", dense_k_.length, ", got ", width);
    }
    if (!problem_.has_value()) return Status();
    const int64_t least = MaxVisibleKeys(*problem_);
    if (width >= least) return Status();
    return InvalidArgument(name, ": expected last dim >= ", least,
                           ", the largest visible key count, got ", width);
  }

  // The last row of a sequence sees all of its keys, in either mask.
  static int64_t MaxVisibleKeys(const Problem& problem) {
    int64_t most = 0;
    for (int64_t batch = 0; batch < problem.num_batches(); ++batch) {
      const Sequence sequence = problem.sequence(batch);
      if (sequence.num_rows > 0) most = std::max(most, sequence.num_keys);
    }
    return most;
  }

  bool packed_q() const { return attributes_.layout_q == Layout::kTnd; }
  bool packed_k() const { return attributes_.layout_k == Layout::kTnd; }
  Layout layout_q() const { return attributes_.layout_q; }
  Layout layout_k() const { return attributes_.layout_k; }
  DType wide() const { return wide_; }
  int64_t dense_key_length() const { return dense_k_.length; }
  Extent batches() const { return {dense_q_.num_batches, "B"}; }
  Extent rows() const { return {dense_q_.length, packed_q() ? "T1" : "S1"}; }

  // Requires: Lengths() has succeeded with values.
  const Problem& problem() const { return *problem_; }
  // Requires: QueriesAndKeys() has succeeded.
  const Operands& operands() const { return operands_; }

 private:
  const SequenceArgs& args_;
  Precision precision_;
  Stage stage_;
  DType wide_;
  kindling::Attributes attributes_;
  Operands operands_;
  DenseSide dense_q_, dense_k_;
  std::optional<Problem> problem_;
};

int64_t LastDim(const ConstTensor& tensor) { return tensor.shape[tensor.rank - 1]; }

// An output that the caller wants. Optional inputs are asked for has_elements() instead.
bool Given(const ConstTensor& output) { return output.rank >= 0; }

// dq in q's dtype or fp32; dk must then be like dq.
Status CheckGradDType(const Tensor& dq, DType input) {
  if (!Given(dq) || dq.dtype == input || dq.dtype == DType::kFloat32) return Status();
  return InvalidDtype("dq: expected dtype ", DTypeName(input),
                      input == DType::kFloat32 ? "" : " or float32", ", got ", DTypeName(dq.dtype));
}

// An optional p is looked at where it is given or needed.
bool UsesTeacher(const SoftmaxLseArgs& args) {
  return Given(args.loss_rows) || args.p.has_elements();
}

Status Walk(const SoftmaxLseArgs& args, Checker& checker) {
  KINDLING_RETURN_IF_ERROR(checker.Attributes());
  KINDLING_RETURN_IF_ERROR(checker.QueriesAndKeys(args.q, args.k, "N1", "D", true));
  KINDLING_RETURN_IF_ERROR(checker.PerHead("w", args.w));
  if (UsesTeacher(args)) KINDLING_RETURN_IF_ERROR(checker.Teacher("p", args.p, {kAny, "keys"}));
  KINDLING_RETURN_IF_ERROR(checker.Lengths());
  if (UsesTeacher(args)) KINDLING_RETURN_IF_ERROR(checker.TeacherWidth("p", LastDim(args.p)));
  KINDLING_RETURN_IF_ERROR(checker.PerRow("lse", args.lse));
  KINDLING_RETURN_IF_ERROR(Checker::OutputMemory("lse", args.lse));
  if (Given(args.loss_rows)) {
    KINDLING_RETURN_IF_ERROR(
        checker.Output("loss_rows", args.loss_rows, args.lse, "lse", checker.wide()));
  }
  return CheckNoOverlap(
      {{"q", args.q}, {"k", args.k}, {"w", args.w}, {"p", args.p}, {"metadata", args.metadata}},
      {{"lse", args.lse}, {"loss_rows", args.loss_rows}});
}

Status Walk(const KLLossGradArgs& args, Checker& checker) {
  KINDLING_RETURN_IF_ERROR(checker.Attributes());
  KINDLING_RETURN_IF_ERROR(checker.QueriesAndKeys(args.q, args.k, "N1", "D", true));
  KINDLING_RETURN_IF_ERROR(checker.PerHead("w", args.w));
  KINDLING_RETURN_IF_ERROR(checker.Teacher("p", args.p, {kAny, "keys"}));
  KINDLING_RETURN_IF_ERROR(checker.PerRow("lse", args.lse));
  if (args.row_scale.has_elements()) {
    KINDLING_RETURN_IF_ERROR(checker.PerRow("row_scale", args.row_scale));
  }
  KINDLING_RETURN_IF_ERROR(checker.Lengths());
  KINDLING_RETURN_IF_ERROR(checker.TeacherWidth("p", LastDim(args.p)));

  const bool native = checker.wide() != DType::kFloat64;
  if (native) KINDLING_RETURN_IF_ERROR(CheckGradDType(args.dq, args.q.dtype));
  const DType grad = native ? args.dq.dtype : DType::kFloat64;
  KINDLING_RETURN_IF_ERROR(checker.Output("dq", args.dq, args.q, "q", grad));
  KINDLING_RETURN_IF_ERROR(checker.Output("dk", args.dk, args.k, "k", grad));
  KINDLING_RETURN_IF_ERROR(checker.Output("dw", args.dw, args.w, "w", checker.wide()));
  if (Given(args.softmax_out)) {
    KINDLING_RETURN_IF_ERROR(
        checker.Output("softmax_out", args.softmax_out, args.p, "p", checker.wide()));
  }
  if (Given(args.loss_rows)) {
    KINDLING_RETURN_IF_ERROR(
        checker.Output("loss_rows", args.loss_rows, args.lse, "lse", checker.wide()));
  }
  return CheckNoOverlap({{"q", args.q},
                         {"k", args.k},
                         {"w", args.w},
                         {"p", args.p},
                         {"lse", args.lse},
                         {"row_scale", args.row_scale},
                         {"metadata", args.metadata}},
                        {{"dq", args.dq},
                         {"dk", args.dk},
                         {"dw", args.dw},
                         {"softmax_out", args.softmax_out},
                         {"loss_rows", args.loss_rows}});
}

// Everything but the output.
Status WalkTeacherInputs(const AttentionL1NormArgs& args, Checker& checker) {
  KINDLING_RETURN_IF_ERROR(checker.Attributes());
  KINDLING_RETURN_IF_ERROR(checker.QueriesAndKeys(args.q, args.k, "G", "Dm", false));
  if (args.lse.has_elements()) {
    KINDLING_RETURN_IF_ERROR(checker.PerRowAndHead("lse", args.lse));
  }
  if (!(std::fabs(args.softmax_scale) <= std::numeric_limits<float>::max())) {
    return InvalidArgument("softmax_scale: expected a finite fp32 number, got ",
                           std::to_string(args.softmax_scale));
  }
  return checker.Lengths();
}

Status Walk(const AttentionL1NormArgs& args, Checker& checker) {
  KINDLING_RETURN_IF_ERROR(WalkTeacherInputs(args, checker));
  KINDLING_RETURN_IF_ERROR(checker.Teacher("p", args.p, {kAny, "keys"}));
  KINDLING_RETURN_IF_ERROR(checker.TeacherWidth("p", LastDim(args.p)));
  KINDLING_RETURN_IF_ERROR(Checker::OutputMemory("p", args.p));
  return CheckNoOverlap(
      {{"q", args.q}, {"k", args.k}, {"lse", args.lse}, {"metadata", args.metadata}},
      {{"p", args.p}});
}

template <class Args>
Status Describe(const Args& args, Precision precision) {
  Checker checker(args, precision, Stage::kDescriptors);
  return Walk(args, checker);
}

}  // namespace

Status DescribeSoftmaxLse(const SoftmaxLseArgs& args, Precision precision) {
  return Describe(args, precision);
}
Status DescribeKLLossGrad(const KLLossGradArgs& args, Precision precision) {
  return Describe(args, precision);
}
Status DescribeAttentionL1Norm(const AttentionL1NormArgs& args, Precision precision) {
  return Describe(args, precision);
}

Result<OperatorCall> CheckSoftmaxLse(const SoftmaxLseArgs& args, Precision precision) {
  Checker checker(args, precision, Stage::kValues);
  KINDLING_RETURN_IF_ERROR(Walk(args, checker));
  OperatorCall call(checker.problem());
  call.indexer = checker.operands();
  call.w = ViewRowsHeadsElements(args.w, checker.layout_q());
  call.lse_out = ViewLse(args.lse, checker.layout_q());
  if (Given(args.loss_rows)) {
    call.p = ViewRowsHeadsElements(args.p, checker.layout_q());
    call.row_stride_p = LastDim(args.p);
    call.loss_rows = ViewLse(args.loss_rows, checker.layout_q());
  }
  return call;
}

Result<OperatorCall> CheckKLLossGrad(const KLLossGradArgs& args, Precision precision) {
  Checker checker(args, precision, Stage::kValues);
  KINDLING_RETURN_IF_ERROR(Walk(args, checker));
  OperatorCall call(checker.problem());
  const Layout layout_q = checker.layout_q();
  call.indexer = checker.operands();
  call.row_stride_p = LastDim(args.p);
  call.w = ViewRowsHeadsElements(args.w, layout_q);
  call.p = ViewRowsHeadsElements(args.p, layout_q);
  call.lse = ViewLse(args.lse, layout_q);
  if (args.row_scale.has_elements()) call.row_scale = ViewLse(args.row_scale, layout_q);
  call.dq = ViewRowsHeadsElements(args.dq, layout_q);
  call.dk = ViewRowsHeadsElements(args.dk, checker.layout_k());
  call.dw = ViewRowsHeadsElements(args.dw, layout_q);
  if (Given(args.softmax_out)) call.softmax_out = ViewRowsHeadsElements(args.softmax_out, layout_q);
  if (Given(args.loss_rows)) call.loss_rows = ViewLse(args.loss_rows, layout_q);
  return call;
}

Result<OperatorCall> CheckAttentionL1Norm(const AttentionL1NormArgs& args, Precision precision) {
  Checker checker(args, precision, Stage::kValues);
  KINDLING_RETURN_IF_ERROR(Walk(args, checker));
  OperatorCall call(checker.problem());
  call.attention = checker.operands();
  if (args.lse.has_elements()) call.lse = ViewLse(args.lse, checker.layout_q());
  call.p_out = ViewRowsHeadsElements(args.p, checker.layout_q());
  call.row_stride_p = LastDim(args.p);
  return call;
}

Result<int64_t> TeacherStride(const AttentionL1NormArgs& args, int64_t max_seqlen_k) {
  if (max_seqlen_k < 0) {
    return InvalidArgument("max_seqlen_k: expected >= 0, got ", max_seqlen_k);
  }
  Checker checker(args, args.q.dtype == DType::kFloat64 ? Precision::kDouble : Precision::kNative,
                  Stage::kValues);
  KINDLING_RETURN_IF_ERROR(WalkTeacherInputs(args, checker));
  if (!checker.packed_q() && !checker.packed_k()) return checker.dense_key_length();
  if (max_seqlen_k == 0) return checker.problem().max_allocated_keys();
  KINDLING_RETURN_IF_ERROR(checker.TeacherWidth("max_seqlen_k", max_seqlen_k));
  return max_seqlen_k;
}

}  // namespace kindling
