// Every argument of every operator wrong in turn: the error names it, and no output is written.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kindling/operators.h"
#include "support/compare.h"
#include "support/problem.h"

namespace kindling::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A change to the arguments of a good call, and what must be said about it.
template <class Args>
struct Mistake {
  std::string what;
  std::string argument;  // how the message begins
  std::function<void(Args&)> make;
  StatusCode code = StatusCode::kInvalidArgument;
};

// Calls `run` with every mistake in turn.
template <class Args>
void CheckMistakes(const Args& good, const std::vector<const OwnedTensor*>& outputs,
                   const std::vector<Mistake<Args>>& mistakes,
                   const std::function<Status(const Args&)>& run) {
  for (const Mistake<Args>& mistake : mistakes) {
    SCOPED_TRACE(mistake.what);
    Args args = good;
    mistake.make(args);
    const Status status = run(args);
    EXPECT_EQ(status.code(), mistake.code) << status.message();
    EXPECT_TRUE(status.message().starts_with(mistake.argument + ": expected ") ||
                status.message().starts_with(mistake.argument + "["))
        << status.message();
    EXPECT_NE(status.message().find(", got "), std::string::npos) << status.message();
    for (const OwnedTensor* output : outputs) {
      for (int64_t i = 0; i < output->size(); ++i) ASSERT_TRUE(output->Unwritten(i));
    }
  }
  EXPECT_TRUE(run(good).ok()) << run(good).message();
}

// The mistakes that one tensor can carry, being absent apart. `Args::*member` is an input or an
// output.
template <class Args, class TensorType>
void AddTensorMistakes(std::vector<Mistake<Args>>& mistakes, const std::string& name,
                       TensorType Args::* member, DType other_dtype) {
  mistakes.push_back({name + " of a rank less", name, [=](Args& args) { --(args.*member).rank; }});
  mistakes.push_back({name + " of a rank more", name, [=](Args& args) {
                        TensorType& tensor = args.*member;
                        if (tensor.rank < kMaxRank) tensor.shape[tensor.rank] = 1;
                        ++tensor.rank;
                      }});
  mistakes.push_back({name + " of rank 6", name, [=](Args& args) { (args.*member).rank = 6; }});
  mistakes.push_back(
      {name + " without data", name, [=](Args& args) { (args.*member).data = nullptr; }});
  mistakes.push_back({name + " of another dtype", name,
                      [=](Args& args) { (args.*member).dtype = other_dtype; },
                      StatusCode::kInvalidDtype});
  mistakes.push_back({name + " of no known dtype", name,
                      [=](Args& args) { (args.*member).dtype = DType::kOther; },
                      StatusCode::kInvalidDtype});
}

template <class Args, class TensorType>
void AddAbsence(std::vector<Mistake<Args>>& mistakes, const std::string& name,
                TensorType Args::* member) {
  mistakes.push_back({name + " absent", name, [=](Args& args) { args.*member = TensorType(); }});
}

// An extent one off.
template <class Args, class TensorType>
void AddExtentMistake(std::vector<Mistake<Args>>& mistakes, const std::string& name,
                      TensorType Args::* member, int32_t axis, int64_t by,
                      const std::string& blamed) {
  mistakes.push_back(
      {name + " with extent " + std::to_string(axis) + " off by " + std::to_string(by), blamed,
       [=](Args& args) { (args.*member).shape[axis] += by; }});
}

template <class Args>
void AddSequenceMistakes(std::vector<Mistake<Args>>& mistakes) {
  const auto add = [&](const std::string& what, const std::string& argument,
                       std::function<void(Args&)> make,
                       StatusCode code = StatusCode::kInvalidArgument) {
    mistakes.push_back({what, argument, std::move(make), code});
  };
  add("mask_mode 1", "mask_mode", [](Args& args) { args.mask_mode = 1; });
  add("mask_mode -1", "mask_mode", [](Args& args) { args.mask_mode = -1; });
  add("cmp_ratio 0", "cmp_ratio", [](Args& args) { args.cmp_ratio = 0; });
  add("cmp_ratio 129", "cmp_ratio", [](Args& args) { args.cmp_ratio = 129; });
  add("layout_q lower case", "layout_q", [](Args& args) { args.layout_q = "tnd"; });
  add("layout_q null", "layout_q", [](Args& args) { args.layout_q = std::string_view(); });
  add("layout_k unknown", "layout_k", [](Args& args) { args.layout_k = "SBH"; });
  add("cu_seqlens_q absent", "cu_seqlens_q", [](Args& args) { args.cu_seqlens_q = ConstTensor(); });
  add("cu_seqlens_k absent", "cu_seqlens_k", [](Args& args) { args.cu_seqlens_k = ConstTensor(); });
  add(
      "cu_seqlens_q of int64", "cu_seqlens_q",
      [](Args& args) { args.cu_seqlens_q.dtype = DType::kOther; }, StatusCode::kInvalidDtype);
  add("cu_seqlens_k of rank 2", "cu_seqlens_k", [](Args& args) {
    args.cu_seqlens_k.rank = 2;
    args.cu_seqlens_k.shape[1] = 1;
  });
  add("cu_seqlens_q too short", "cu_seqlens_k", [](Args& args) { --args.cu_seqlens_q.shape[0]; });
  add("cu_seqlens_q without data", "cu_seqlens_q",
      [](Args& args) { args.cu_seqlens_q.data = nullptr; });
  // Totals of 8 rows and 11 keys, where q and k hold 7 and 10.
  static const int32_t long_cu_q[] = {0, 4, 8};
  static const int32_t long_cu_k[] = {0, 6, 11};
  add("cu_seqlens_q beyond q", "cu_seqlens_q",
      [](Args& args) { args.cu_seqlens_q.data = long_cu_q; });
  add("cu_seqlens_k beyond k", "cu_seqlens_k",
      [](Args& args) { args.cu_seqlens_k.data = long_cu_k; });
  static const int32_t short_cu_k[] = {0, 6, 9};
  add("cu_seqlens_k short of k", "cu_seqlens_k",
      [](Args& args) { args.cu_seqlens_k.data = short_cu_k; });
  static const int32_t falling[] = {0, 8, 7};
  add("cu_seqlens_q falling", "cu_seqlens_q[2]",
      [](Args& args) { args.cu_seqlens_q.data = falling; });
  static const int32_t from_one[] = {1, 4, 7};
  add("cu_seqlens_q from 1", "cu_seqlens_q[0]",
      [](Args& args) { args.cu_seqlens_q.data = from_one; });
  static const int32_t too_many_used[] = {3, 5};
  add("seqused_q too long", "seqused_q[1]",
      [](Args& args) { args.seqused_q = ConstTensor(too_many_used, DType::kInt32, {2}); });
  static const int32_t negative[] = {0, -1};
  add("seqused_k negative", "seqused_k[1]",
      [](Args& args) { args.seqused_k = ConstTensor(negative, DType::kInt32, {2}); });
  add("seqused_k for one batch", "seqused_k",
      [](Args& args) { args.seqused_k = ConstTensor(too_many_used, DType::kInt32, {1}); });
  add("residual missing", "cmp_residual_k", [](Args& args) { args.cmp_ratio = 2; });
  static const int32_t residual[] = {0, 2};
  add("residual too large", "cmp_residual_k[1]", [](Args& args) {
    args.cmp_ratio = 2;
    args.cmp_residual_k = ConstTensor(residual, DType::kInt32, {2});
  });
  static const int32_t zeros[kMetadataWords] = {};
  add("metadata for another problem", "metadata[0]",
      [](Args& args) { args.metadata = ConstTensor(zeros, DType::kInt32, {kMetadataWords}); });
  add("metadata of 63 words", "metadata",
      [](Args& args) { args.metadata = ConstTensor(zeros, DType::kInt32, {kMetadataWords - 1}); });
  add(
      "metadata of fp32", "metadata",
      [](Args& args) { args.metadata = ConstTensor(zeros, DType::kFloat32, {kMetadataWords}); },
      StatusCode::kInvalidDtype);
  add("metadata of rank 2", "metadata",
      [](Args& args) { args.metadata = ConstTensor(zeros, DType::kInt32, {1, kMetadataWords}); });
  add("metadata without data", "metadata",
      [](Args& args) { args.metadata = ConstTensor(nullptr, DType::kInt32, {kMetadataWords}); });
}

// An output on top of another tensor, and one with gaps.
template <class Args>
void AddOutputMistakes(std::vector<Mistake<Args>>& mistakes, const std::string& name,
                       Tensor Args::* output, const std::vector<ConstTensor Args::*>& inputs) {
  for (const auto input : inputs) {
    mistakes.push_back({name + " over an input", name, [=](Args& args) {
                          (args.*output).data = const_cast<void*>((args.*input).data);
                        }});
  }
  mistakes.push_back({name + " with gaps", name, [=](Args& args) {
                        Tensor& tensor = args.*output;
                        tensor.strides[tensor.rank - 1] = 2;
                      }});
  mistakes.push_back({name + " reversed", name, [=](Args& args) {
                        Tensor& tensor = args.*output;
                        tensor.strides[tensor.rank - 1] = -1;
                      }});
}

Case SmallCase() {
  Case spec;
  spec.mask_mode = MaskMode::kCausal;
  spec.num_heads = 4;
  spec.num_key_heads = 2;
  spec.head_dim = 3;
  spec.num_rows = {3, 4};
  spec.num_keys = {6, 4};
  spec.row_scale = true;
  return spec;
}

TEST(Arguments, OfSoftmaxLse) {
  const Indexer problem(SmallCase());
  LseOutputs outputs(problem, {});
  std::vector<Mistake<SoftmaxLseArgs>> mistakes;
  using Args = SoftmaxLseArgs;
  AddTensorMistakes(mistakes, "q", &Args::q, DType::kFloat64);
  AddTensorMistakes(mistakes, "k", &Args::k, DType::kFloat16);
  AddTensorMistakes(mistakes, "w", &Args::w, DType::kBFloat16);
  AddTensorMistakes(mistakes, "p", &Args::p, DType::kFloat64);
  AddTensorMistakes(mistakes, "lse", &Args::lse, DType::kFloat64);
  AddExtentMistake(mistakes, "k", &Args::k, 1, 1, "k");   // two key heads
  AddExtentMistake(mistakes, "k", &Args::k, 2, -1, "k");  // another width
  AddExtentMistake(mistakes, "w", &Args::w, 0, -1, "w");
  AddExtentMistake(mistakes, "w", &Args::w, 1, -1, "w");
  AddExtentMistake(mistakes, "p", &Args::p, 0, -1, "p");
  AddExtentMistake(mistakes, "p", &Args::p, 1, 1, "p");
  AddExtentMistake(mistakes, "p", &Args::p, 2, -1, "p");  // fewer columns than a row sees
  AddExtentMistake(mistakes, "lse", &Args::lse, 1, -1, "lse");
  AddExtentMistake(mistakes, "lse", &Args::lse, 0, 1, "lse");
  AddExtentMistake(mistakes, "loss_rows", &Args::loss_rows, 1, -1, "loss_rows");
  AddExtentMistake(mistakes, "q", &Args::q, 1, -4, "q");  // no heads
  AddExtentMistake(mistakes, "q", &Args::q, 2, -3, "q");  // no width
  AddSequenceMistakes(mistakes);
  AddOutputMistakes(mistakes, "lse", &Args::lse, {&Args::q, &Args::k, &Args::w, &Args::p});
  AddOutputMistakes(mistakes, "loss_rows", &Args::loss_rows, {&Args::q, &Args::p});
  mistakes.push_back(
      {"loss_rows over lse", "lse", [](Args& args) { args.loss_rows.data = args.lse.data; }});
  mistakes.push_back({"loss_rows of fp64", "loss_rows",
                      [](Args& args) { args.loss_rows.dtype = DType::kFloat64; },
                      StatusCode::kInvalidDtype});
  CheckMistakes<Args>(MakeArgs(problem, outputs), {&outputs.lse, &outputs.loss_rows}, mistakes,
                      [](const Args& args) { return SoftmaxLse(args); });
}

TEST(Arguments, OfKLLossGrad) {
  const Indexer problem(SmallCase());
  GradOutputs outputs(problem, {});
  std::vector<Mistake<KLLossGradArgs>> mistakes;
  using Args = KLLossGradArgs;
  AddTensorMistakes(mistakes, "q", &Args::q, DType::kInt32);
  AddTensorMistakes(mistakes, "k", &Args::k, DType::kBFloat16);
  AddTensorMistakes(mistakes, "w", &Args::w, DType::kFloat64);
  AddTensorMistakes(mistakes, "p", &Args::p, DType::kFloat16);
  AddTensorMistakes(mistakes, "lse", &Args::lse, DType::kFloat64);
  AddTensorMistakes(mistakes, "dq", &Args::dq, DType::kFloat64);
  AddTensorMistakes(mistakes, "dk", &Args::dk, DType::kBFloat16);
  AddTensorMistakes(mistakes, "dw", &Args::dw, DType::kFloat64);
  AddExtentMistake(mistakes, "k", &Args::k, 1, 1, "k");
  AddExtentMistake(mistakes, "w", &Args::w, 1, 1, "w");
  AddExtentMistake(mistakes, "p", &Args::p, 2, -1, "p");
  AddExtentMistake(mistakes, "lse", &Args::lse, 1, 1, "lse");
  AddExtentMistake(mistakes, "row_scale", &Args::row_scale, 1, -1, "row_scale");
  AddExtentMistake(mistakes, "dq", &Args::dq, 0, -1, "dq");
  AddExtentMistake(mistakes, "dq", &Args::dq, 2, 1, "dq");
  AddExtentMistake(mistakes, "dk", &Args::dk, 0, 1, "dk");
  AddExtentMistake(mistakes, "dw", &Args::dw, 1, -1, "dw");
  AddExtentMistake(mistakes, "softmax_out", &Args::softmax_out, 2, 1, "softmax_out");
  AddExtentMistake(mistakes, "loss_rows", &Args::loss_rows, 1, -1, "loss_rows");
  AddSequenceMistakes(mistakes);
  const std::vector<ConstTensor Args::*> inputs = {&Args::q, &Args::k,   &Args::w,
                                                   &Args::p, &Args::lse, &Args::row_scale};
  AddOutputMistakes(mistakes, "dq", &Args::dq, inputs);
  AddOutputMistakes(mistakes, "dk", &Args::dk, inputs);
  AddOutputMistakes(mistakes, "dw", &Args::dw, inputs);
  AddOutputMistakes(mistakes, "softmax_out", &Args::softmax_out, inputs);
  AddOutputMistakes(mistakes, "loss_rows", &Args::loss_rows, inputs);
  const auto add = [&](const std::string& what, const std::string& argument,
                       std::function<void(Args&)> make,
                       StatusCode code = StatusCode::kInvalidArgument) {
    mistakes.push_back({what, argument, std::move(make), code});
  };
  add("dk over the last element of dq", "dq",
      [](Args& args) { args.dk.data = static_cast<float*>(args.dq.data) + 7 * 4 * 3 - 1; });
  add("dk between elements", "dk",
      [](Args& args) { args.dk.data = static_cast<char*>(args.dk.data) + 1; });
  add("p between elements", "p",
      [](Args& args) { args.p.data = static_cast<const char*>(args.p.data) + 2; });
  add("softmax_out over p", "softmax_out",
      [](Args& args) { args.softmax_out.data = const_cast<void*>(args.p.data); });
  add(
      "dq of another 16-bit dtype", "dq", [](Args& args) { args.dq.dtype = DType::kFloat16; },
      StatusCode::kInvalidDtype);
  add(
      "row_scale of fp16", "row_scale", [](Args& args) { args.row_scale.dtype = DType::kFloat16; },
      StatusCode::kInvalidDtype);
  add(
      "softmax_out of fp16", "softmax_out",
      [](Args& args) { args.softmax_out.dtype = DType::kFloat16; }, StatusCode::kInvalidDtype);
  CheckMistakes<Args>(
      MakeArgs(problem, outputs),
      {&outputs.dq, &outputs.dk, &outputs.dw, &outputs.softmax_out, &outputs.loss_rows}, mistakes,
      [](const Args& args) { return KLLossGrad(args); });
}

TEST(Arguments, OfAttentionL1Norm) {
  const Teacher problem(SmallCase(), Teacher::Lse::kGiven);
  OwnedTensor p = TeacherOutput(problem);
  std::vector<Mistake<AttentionL1NormArgs>> mistakes;
  using Args = AttentionL1NormArgs;
  AddTensorMistakes(mistakes, "q", &Args::q, DType::kFloat64);
  AddTensorMistakes(mistakes, "k", &Args::k, DType::kFloat16);
  AddTensorMistakes(mistakes, "p", &Args::p, DType::kFloat64);
  AddExtentMistake(mistakes, "k", &Args::k, 1, 1, "k");   // 3 key heads for 4 query heads
  AddExtentMistake(mistakes, "k", &Args::k, 1, -2, "k");  // none
  AddExtentMistake(mistakes, "k", &Args::k, 2, 1, "k");
  AddExtentMistake(mistakes, "lse", &Args::lse, 0, 1, "lse");
  AddExtentMistake(mistakes, "lse", &Args::lse, 1, -1, "lse");
  AddExtentMistake(mistakes, "lse", &Args::lse, 2, -1, "lse");
  AddExtentMistake(mistakes, "p", &Args::p, 0, -1, "p");
  AddExtentMistake(mistakes, "p", &Args::p, 1, 1, "p");
  AddExtentMistake(mistakes, "p", &Args::p, 2, -1, "p");
  AddSequenceMistakes(mistakes);
  AddOutputMistakes(mistakes, "p", &Args::p, {&Args::q, &Args::k, &Args::lse});
  mistakes.push_back({"lse of fp64", "lse", [](Args& args) { args.lse.dtype = DType::kFloat64; },
                      StatusCode::kInvalidDtype});
  mistakes.push_back({"an infinite softmax_scale", "softmax_scale",
                      [](Args& args) { args.softmax_scale = kInfinity; }});
  mistakes.push_back({"softmax_scale NaN", "softmax_scale",
                      [](Args& args) { args.softmax_scale = kInfinity - kInfinity; }});
  CheckMistakes<Args>(MakeArgs(problem, p), {&p}, mistakes,
                      [](const Args& args) { return AttentionL1Norm(args); });
}

TEST(Arguments, AbsenceIsNotAWrongDtype) {
  const Indexer problem(SmallCase());
  LseOutputs lse(problem, {});
  std::vector<Mistake<SoftmaxLseArgs>> of_lse;
  AddAbsence(of_lse, "q", &SoftmaxLseArgs::q);
  AddAbsence(of_lse, "k", &SoftmaxLseArgs::k);
  AddAbsence(of_lse, "w", &SoftmaxLseArgs::w);
  AddAbsence(of_lse, "p", &SoftmaxLseArgs::p);  // loss_rows needs it
  AddAbsence(of_lse, "lse", &SoftmaxLseArgs::lse);
  CheckMistakes<SoftmaxLseArgs>(MakeArgs(problem, lse), {&lse.lse, &lse.loss_rows}, of_lse,
                                [](const auto& args) { return SoftmaxLse(args); });
  GradOutputs grad(problem, {});
  std::vector<Mistake<KLLossGradArgs>> of_grad;
  AddAbsence(of_grad, "q", &KLLossGradArgs::q);
  AddAbsence(of_grad, "k", &KLLossGradArgs::k);
  AddAbsence(of_grad, "w", &KLLossGradArgs::w);
  AddAbsence(of_grad, "p", &KLLossGradArgs::p);
  AddAbsence(of_grad, "lse", &KLLossGradArgs::lse);
  AddAbsence(of_grad, "dq", &KLLossGradArgs::dq);
  AddAbsence(of_grad, "dk", &KLLossGradArgs::dk);
  AddAbsence(of_grad, "dw", &KLLossGradArgs::dw);
  CheckMistakes<KLLossGradArgs>(MakeArgs(problem, grad), {&grad.dq, &grad.dk, &grad.dw}, of_grad,
                                [](const auto& args) { return KLLossGrad(args); });
  const Teacher teacher(SmallCase(), Teacher::Lse::kGiven);
  OwnedTensor p = TeacherOutput(teacher);
  std::vector<Mistake<AttentionL1NormArgs>> of_teacher;
  AddAbsence(of_teacher, "q", &AttentionL1NormArgs::q);
  AddAbsence(of_teacher, "k", &AttentionL1NormArgs::k);
  AddAbsence(of_teacher, "p", &AttentionL1NormArgs::p);
  CheckMistakes<AttentionL1NormArgs>(MakeArgs(teacher, p), {&p}, of_teacher,
                                     [](const auto& args) { return AttentionL1Norm(args); });
}

TEST(Arguments, NumThreads) {
  const Indexer problem(SmallCase());
  const Teacher teacher(SmallCase(), Teacher::Lse::kAbsent);
  LseOutputs lse(problem, {});
  GradOutputs grad(problem, {});
  OwnedTensor p = TeacherOutput(teacher);
  for (const int64_t num_threads : {int64_t{-1}, kMaxThreads + 1, int64_t{1} << 40}) {
    const RunOptions options{.num_threads = num_threads};
    for (const Status& status :
         {SoftmaxLse(MakeArgs(problem, lse), options), KLLossGrad(MakeArgs(problem, grad), options),
          AttentionL1Norm(MakeArgs(teacher, p), options)}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(status.message().starts_with("num_threads: ")) << status.message();
    }
  }
  EXPECT_TRUE(KLLossGrad(MakeArgs(problem, grad), {.num_threads = kMaxThreads}).ok());
}

// In a dense batch the number of sequences is the first extent of q and of k, whatever else says
// so.
TEST(Arguments, SequencesBeyondADenseBatchAreRefused) {
  Case spec = SmallCase();
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  const Indexer problem(spec);
  const int32_t three[] = {1, 1, 1};
  for (const int64_t num_batches : {1, 3}) {
    GradOutputs outputs(problem, {});
    KLLossGradArgs args = MakeArgs(problem, outputs);
    args.seqused_q = ConstTensor(three, DType::kInt32, {num_batches});
    args.seqused_k = ConstTensor(three, DType::kInt32, {num_batches});
    const Status status = KLLossGradWorkspaceBytes(args, 1).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << num_batches;
    EXPECT_NE(status.message().find("seqused_"), std::string::npos) << status.message();
  }
  // A packed side whose count agrees with seqused, not with the dense side.
  spec.layout_k = Layout::kTnd;
  const Indexer mixed(spec);
  GradOutputs outputs(mixed, {});
  KLLossGradArgs args = MakeArgs(mixed, outputs);
  const int32_t cu[] = {0, 2, 4, 10};
  args.cu_seqlens_k = ConstTensor(cu, DType::kInt32, {4});
  args.seqused_q = ConstTensor(three, DType::kInt32, {3});
  const Status status = KLLossGradWorkspaceBytes(args, 1).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

// Nobody's sequences are merged without a word: prefix sums of a dense batch are refused, and
// nothing is written.
TEST(Arguments, PrefixSumsOfADenseBatchAreRefused) {
  Case spec = SmallCase();
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  const Indexer problem(spec);
  const Teacher teacher(spec, Teacher::Lse::kAbsent);
  const int32_t cu[] = {0, 1, 2, 3, 999};
  for (const auto side : {&SequenceArgs::cu_seqlens_q, &SequenceArgs::cu_seqlens_k}) {
    const std::string name = side == &SequenceArgs::cu_seqlens_q ? "cu_seqlens_q" : "cu_seqlens_k";
    LseOutputs lse(problem, {});
    GradOutputs grad(problem, {});
    OwnedTensor p = TeacherOutput(teacher);
    SoftmaxLseArgs lse_args = MakeArgs(problem, lse);
    KLLossGradArgs grad_args = MakeArgs(problem, grad);
    AttentionL1NormArgs teacher_args = MakeArgs(teacher, p);
    for (SequenceArgs* args :
         std::initializer_list<SequenceArgs*>{&lse_args, &grad_args, &teacher_args}) {
      args->*side = ConstTensor(cu, DType::kInt32, {5});
    }
    for (const Status& status :
         {SoftmaxLse(lse_args), KLLossGrad(grad_args), AttentionL1Norm(teacher_args),
          SoftmaxLseWorkspaceBytes(lse_args, 1).status(),
          KLLossGradWorkspaceBytes(grad_args, 1).status(),
          AttentionL1NormWorkspaceBytes(teacher_args, 1).status(),
          TeacherStride(teacher_args, 0).status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_TRUE(status.message().starts_with(name + ": ")) << status.message();
    }
    EXPECT_TRUE(grad.dq.Unwritten(0) && lse.lse.Unwritten(0) && p.Unwritten(0));
  }
}

// The width of p is S2 exactly where both layouts are dense.
TEST(Arguments, TeacherWidthOfADenseBatch) {
  Case spec = SmallCase();
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  const Indexer problem(spec);
  for (const int64_t by : {-1, 1}) {
    GradOutputs outputs(problem, {.softmax_out = false, .loss_rows = false});
    KLLossGradArgs args = MakeArgs(problem, outputs);
    args.p.shape[3] += by;
    const Status status = KLLossGradWorkspaceBytes(args, 1).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with("p: ")) << status.message();
  }
}

// An optional tensor without elements counts as absent, whatever else its descriptor says.
TEST(Arguments, EmptyOptionalTensorsAreAbsent) {
  const Indexer problem(SmallCase());
  const GradOutputs want = RunKLLossGrad(problem);
  GradOutputs outputs(problem, {});
  KLLossGradArgs args = MakeArgs(problem, outputs);
  args.metadata = args.seqused_q = args.cmp_residual_k =
      ConstTensor(nullptr, DType::kOther, {3, 0, 2});
  ASSERT_TRUE(KLLossGrad(args).ok());
  EXPECT_TRUE(SameBits(outputs, want, problem.spec));
}

// Strides of extents of 1 are nobody's business.
TEST(Arguments, StridesOfSingleExtentsAreIgnored) {
  const Indexer problem(SmallCase());
  const GradOutputs want = RunKLLossGrad(problem);
  GradOutputs outputs(problem, {});
  KLLossGradArgs args = MakeArgs(problem, outputs);
  args.dk.strides[1] = args.softmax_out.strides[1] = args.loss_rows.strides[0] = 12345;
  args.k.strides[1] = args.p.strides[1] = args.lse.strides[0] = -999;
  ASSERT_TRUE(KLLossGrad(args).ok());
  EXPECT_TRUE(SameBits(outputs, want, problem.spec));
}

}  // namespace
}  // namespace kindling::test
