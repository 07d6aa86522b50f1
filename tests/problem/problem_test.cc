#include "kindling/problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/property.h"
#include "problem/lengths_case.h"

namespace kindling {
namespace {

using test::Form;
using test::LengthsCase;
using test::MakeCase;
using test::RowFacts;

constexpr Form kForms[] = {Form::kPacked, Form::kPackedUsed, Form::kPadded, Form::kUniform};

Problem Create(const LengthsCase& lengths) {
  Result<Problem> problem = Problem::Create(lengths.Args());
  EXPECT_TRUE(problem.ok()) << problem.status().message();
  return problem.value();
}

bool UniformFits(const std::vector<int32_t>& lengths) {
  return lengths.front() > 0 && std::all_of(lengths.begin(), lengths.end(), [&](int32_t length) {
           return length == lengths.front();
         });
}

// What differs between a problem and the definition, row by row, and between its sequences and the
// rows that they are made of; empty if nothing does.
std::string Mismatch(const LengthsCase& lengths) {
  const Result<Problem> created = Problem::Create(lengths.Args());
  if (!created.ok()) return created.status().message();
  const Problem& problem = created.value();
  const std::vector<RowFacts> rows = test::RowsOf(lengths);
  if (problem.num_rows() != static_cast<int64_t>(rows.size())) return "num_rows";
  for (int64_t t = 0; t < problem.num_rows(); ++t) {
    if (test::FactsOf(problem.Locate(t)) != rows[t]) return "Locate " + std::to_string(t);
    if (problem.BatchOfRow(t) != rows[t][0]) return "BatchOfRow " + std::to_string(t);
  }
  int64_t next_row = 0;
  for (int64_t b = 0; b < problem.num_batches(); ++b) {
    const Sequence sequence = problem.sequence(b);
    if (sequence.row_begin != next_row) return "row_begin of " + std::to_string(b);
    for (int64_t s = 0; s < sequence.num_rows; ++s, ++next_row) {
      const RowFacts facts = {b, s, sequence.storage_row_begin + s, sequence.key_begin,
                              problem.NumVisibleKeys(sequence, s)};
      if (facts != rows[next_row]) return "sequence " + std::to_string(b);
    }
  }
  return next_row == problem.num_rows() ? "" : "rows of all sequences";
}

TEST(ProblemOf, PackedWithEmptySequences) {
  LengthsCase lengths;
  lengths.cu_q = {0, 0, 3, 3, 5, 5};
  lengths.cu_k = {0, 2, 2, 6, 9, 9};
  const Problem problem = Create(lengths);
  EXPECT_EQ(problem.num_batches(), 5);
  EXPECT_EQ(problem.num_rows(), 5);
  EXPECT_EQ(problem.max_num_keys(), 4) << "of a batch without rows, too";
  EXPECT_EQ(problem.max_allocated_keys(), 4);
  EXPECT_EQ(problem.layout_q(), Layout::kTnd);
  EXPECT_EQ(problem.layout_k(), Layout::kTnd);
  EXPECT_EQ(problem.mask_mode(), MaskMode::kNone);
  const int64_t batches[] = {1, 1, 1, 3, 3};
  for (int64_t t = 0; t < 5; ++t) EXPECT_EQ(problem.BatchOfRow(t), batches[t]) << t;
  EXPECT_EQ(test::FactsOf(problem.Locate(2)), (RowFacts{1, 2, 2, 2, 0}));
  EXPECT_EQ(test::FactsOf(problem.Locate(3)), (RowFacts{3, 0, 3, 6, 3}));
}

TEST(ProblemOf, PaddedRowsAndPackedKeysWithUsedLengths) {
  LengthsCase lengths;
  lengths.layout_q = "BSND";
  lengths.max_seqlen_q = 4;
  lengths.used_q = {3, 0, 1};
  lengths.cu_k = {0, 5, 5, 12};
  lengths.used_k = {2, 0, 6};
  lengths.residual = {2, 0, 1};
  lengths.mask_mode = 3;
  lengths.cmp_ratio = 3;
  const Problem problem = Create(lengths);
  EXPECT_EQ(problem.num_batches(), 3);
  EXPECT_EQ(problem.num_rows(), 4);
  EXPECT_EQ(problem.max_num_keys(), 6);
  EXPECT_EQ(problem.max_allocated_keys(), 7);
  EXPECT_EQ(problem.layout_q(), Layout::kBsnd);
  EXPECT_EQ(problem.layout_k(), Layout::kTnd);
  EXPECT_EQ(problem.mask_mode(), MaskMode::kCausal);
  EXPECT_EQ(problem.cmp_ratio(), 3);
  const Sequence sequence = problem.sequence(2);
  EXPECT_EQ(sequence.row_begin, 3);
  EXPECT_EQ(sequence.num_rows, 1);
  EXPECT_EQ(sequence.num_keys, 6);
  EXPECT_EQ(sequence.storage_row_begin, 8);
  EXPECT_EQ(sequence.num_allocated_rows, 4);
  EXPECT_EQ(sequence.key_begin, 5);
  EXPECT_EQ(sequence.num_allocated_keys, 7);
  EXPECT_EQ(sequence.residual, 1);
  // Tokens seen: 2*3 + 2 - 3 + s + 1 = 6, 7, 8; then 6*3 + 1.
  const RowFacts expected[] = {{0, 0, 0, 0, 2}, {0, 1, 1, 0, 2}, {0, 2, 2, 0, 2}, {2, 0, 8, 5, 6}};
  for (int64_t t = 0; t < 4; ++t) EXPECT_EQ(test::FactsOf(problem.Locate(t)), expected[t]) << t;
}

TEST(ProblemOf, UniformLengthsAreNotStored) {
  LengthsCase lengths;
  lengths.layout_q = lengths.layout_k = "BSND";
  lengths.batch_size = 65535;
  lengths.max_seqlen_q = 32768;
  lengths.max_seqlen_k = 2147483647;
  lengths.mask_mode = 3;
  const Problem problem = Create(lengths);
  EXPECT_EQ(problem.num_rows(), 2147450880);
  EXPECT_EQ(problem.max_num_keys(), 2147483647);
  EXPECT_EQ(problem.max_allocated_keys(), 2147483647);
  const int64_t last = problem.num_rows() - 1;
  EXPECT_EQ(test::FactsOf(problem.Locate(last)),
            (RowFacts{65534, 32767, last, int64_t{65534} * 2147483647, 2147483647}));
  EXPECT_EQ(test::FactsOf(problem.Locate(32768)),
            (RowFacts{1, 0, 32768, 2147483647, 2147483647 - 32767}));
}

TEST(ProblemOf, NothingAtAll) {
  LengthsCase lengths;
  lengths.cu_q = {0};
  lengths.cu_k = {0};
  const Problem problem = Create(lengths);
  EXPECT_EQ(problem.num_batches(), 0);
  EXPECT_EQ(problem.num_rows(), 0);
  EXPECT_EQ(problem.max_num_keys(), 0);
  EXPECT_EQ(problem.max_allocated_keys(), 0);
}

TEST(ProblemOf, OwnsItsLengths) {
  LengthsCase lengths;
  lengths.cu_q = {0, 4, 9};
  lengths.cu_k = {0, 3, 7};
  lengths.used_q = {2, 5};
  lengths.used_k = {3, 1};
  lengths.residual = {1, 0};
  lengths.mask_mode = 3;
  lengths.cmp_ratio = 2;
  const std::vector<RowFacts> rows = test::RowsOf(lengths);
  auto first = std::make_unique<Problem>(Create(lengths));
  for (auto* values :
       {&lengths.cu_q, &lengths.cu_k, &lengths.used_q, &lengths.used_k, &lengths.residual}) {
    std::fill(values->begin(), values->end(), -7);
  }
  const Problem copy = *first;
  first.reset();
  ASSERT_EQ(copy.num_rows(), 7);
  for (int64_t t = 0; t < 7; ++t) EXPECT_EQ(test::FactsOf(copy.Locate(t)), rows[t]) << t;
}

// Core counts belong to the plan; heads and width, of which the operators take any, to the record.
TEST(ProblemOf, IgnoresCoresHeadsAndWidth) {
  LengthsCase lengths;
  lengths.cu_q = lengths.cu_k = {0, 2};
  MetadataArgs args = lengths.Args();
  args.num_cores = 0;
  args.num_vector_cores = -3;
  args.num_heads_q = args.num_heads_k = 1000;
  args.head_dim = 7;
  EXPECT_TRUE(Problem::Create(args).ok());
}

// All lengths up to 5, both masks, ratios up to 3, all residuals; the two sides' forms take turns.
// Three batches add nothing per batch, so there the residuals take turns too.
TEST(ProblemDefinition, AllSmallBatches) {
  constexpr int32_t kMaxLength = 5;
  int64_t turn = 0;
  int64_t num_cases = 0;
  const auto run = [&](const std::vector<int32_t>& num_rows, const std::vector<int32_t>& num_keys,
                       int64_t mask_mode, int64_t ratio, const std::vector<int32_t>& residual) {
    Form form_q = kForms[turn % 4];
    Form form_k = kForms[turn / 4 % 4];
    ++turn;
    if (form_q == Form::kUniform && !UniformFits(num_rows)) form_q = Form::kPadded;
    if (form_k == Form::kUniform && !UniformFits(num_keys)) form_k = Form::kPadded;
    LengthsCase lengths = MakeCase(form_q, form_k, num_rows, num_keys);
    lengths.mask_mode = mask_mode;
    lengths.cmp_ratio = ratio;
    lengths.residual = residual;
    ASSERT_EQ(Mismatch(lengths), "") << "case " << turn;
    ++num_cases;
  };
  const auto decode = [](int64_t code, int64_t num_batches, int64_t base) {
    std::vector<int32_t> digits;
    for (int64_t b = 0; b < num_batches; ++b, code /= base) {
      digits.push_back(static_cast<int32_t>(code % base));
    }
    return digits;
  };
  const auto power = [](int64_t base, int64_t exponent) {
    int64_t out = 1;
    while (exponent-- > 0) out *= base;
    return out;
  };
  for (int64_t num_batches = 1; num_batches <= 3 && !HasFatalFailure(); ++num_batches) {
    const int64_t num_lengths = power(kMaxLength + 1, num_batches);
    for (int64_t rows = 0; rows < num_lengths; ++rows) {
      for (int64_t keys = 0; keys < num_lengths && !HasFatalFailure(); ++keys) {
        const auto num_rows = decode(rows, num_batches, kMaxLength + 1);
        const auto num_keys = decode(keys, num_batches, kMaxLength + 1);
        if (num_batches == 3) {
          const int64_t ratio = 1 + turn % 3;
          const int64_t residual = turn * 7 % power(ratio, 3);
          run(num_rows, num_keys, turn % 5 == 0 ? 0 : 3, ratio, decode(residual, 3, ratio));
          continue;
        }
        for (const int64_t mask_mode : {0, 3}) {
          for (int64_t ratio = 1; ratio <= 3; ++ratio) {
            for (int64_t residual = 0; residual < power(ratio, num_batches); ++residual) {
              run(num_rows, num_keys, mask_mode, ratio, decode(residual, num_batches, ratio));
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(num_cases, 36 * 2 * (1 + 2 + 3) + 1296 * 2 * (1 + 4 + 9) + 46656);
}

TEST(ProblemDefinition, RandomBatches) {
  test::CheckProperty(
      [] {
        const auto num_batches = *rc::gen::inRange<size_t>(1, 40);
        const auto length = rc::gen::weightedOneOf<int32_t>(
            {{1, rc::gen::just<int32_t>(0)}, {4, rc::gen::inRange<int32_t>(0, 70)}});
        const auto num_rows = *rc::gen::container<std::vector<int32_t>>(num_batches, length);
        const auto num_keys = *rc::gen::container<std::vector<int32_t>>(num_batches, length);
        const auto form = rc::gen::element(Form::kPacked, Form::kPackedUsed, Form::kPadded);
        LengthsCase lengths = MakeCase(*form, *form, num_rows, num_keys);
        lengths.mask_mode = *rc::gen::element<int64_t>(0, 3);
        lengths.cmp_ratio = *rc::gen::inRange<int64_t>(1, 129);
        lengths.residual = *rc::gen::container<std::vector<int32_t>>(
            num_batches, rc::gen::inRange<int32_t>(0, static_cast<int32_t>(lengths.cmp_ratio)));
        RC_ASSERT(Mismatch(lengths) == "");
      },
      100);
}

// One batch written in every way that fits gives the same rows, places in storage apart.
TEST(ProblemDefinition, FormsAgree) {
  const std::vector<int32_t> num_rows = {6, 6, 6};
  const std::vector<int32_t> num_keys = {4, 4, 4};
  std::vector<std::array<int64_t, 3>> first;
  for (const Form form_q : kForms) {
    for (const Form form_k : kForms) {
      LengthsCase lengths = MakeCase(form_q, form_k, num_rows, num_keys);
      lengths.mask_mode = 3;
      lengths.cmp_ratio = 2;
      lengths.residual = {1, 0, 1};
      const Problem problem = Create(lengths);
      std::vector<std::array<int64_t, 3>> rows;
      for (int64_t t = 0; t < problem.num_rows(); ++t) {
        const RowCoordinates at = problem.Locate(t);
        rows.push_back({at.batch, at.position, at.num_visible_keys});
      }
      if (first.empty()) first = rows;
      EXPECT_EQ(rows, first) << static_cast<int>(form_q) << " " << static_cast<int>(form_k);
    }
  }
  EXPECT_EQ(first.size(), 18u);
}

TEST(SequenceArgs, MaskByName) {
  MetadataArgs args;
  args.batch_size = 1;
  args.max_seqlen_q = 2;
  args.max_seqlen_k = 3;
  for (const MaskMode mask : {MaskMode::kCausal, MaskMode::kNone}) {
    args.set_mask(mask);
    const Result<Problem> problem = Problem::Create(args);
    ASSERT_TRUE(problem.ok());
    EXPECT_EQ(problem.value().mask_mode(), mask);
    EXPECT_EQ(problem.value().Locate(0).num_visible_keys, mask == MaskMode::kCausal ? 2 : 3);
  }
}

}  // namespace
}  // namespace kindling
