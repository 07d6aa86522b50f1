#include "plan/workspace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "support/random.h"

namespace kindling {
namespace {

constexpr int64_t kLine = 64;

struct Array {
  std::string_view name;
  int64_t begin;
  int64_t bytes;
};

// The arrays of one operator, with the sizes that workspace.h gives them.
struct Arrays {
  std::vector<Array> shared, totals, worker;
};

void Append(const std::vector<Array>& more, std::vector<Array>& arrays) {
  arrays.insert(arrays.end(), more.begin(), more.end());
}

int64_t RoundUp(int64_t a, int64_t unit) { return (a + unit - 1) / unit * unit; }

// What follows from head_dim, in words of 4 bytes.
struct Widths {
  explicit Widths(const OperandDims& dims)
      : depth(WordsOf(dims, dims.head_dim)),
        words(RoundUp(depth, 16)),
        values(RoundUp(dims.head_dim, 16)),
        panels(RoundUp(dims.head_dim, dims.panel_width)) {}
  static int64_t WordsOf(const OperandDims& dims, int64_t count) {
    return (count + dims.values_per_word - 1) / dims.values_per_word;
  }
  int64_t depth, words, values, panels;
};

// What all operators have, for one pair of operands.
Arrays CommonArrays(const WorkspaceDims& dims, const WorkspaceLayout& layout,
                    const OperandDims& operands, const OperandLayout& place) {
  const Widths widths(operands);
  const int64_t pairs = operands.pairs_per_block;
  Arrays arrays = {{{"transposed_keys", place.transposed_keys,
                     4 * operands.num_key_heads * dims.num_padded_keys * widths.depth}},
                   {},
                   {{"queries", place.queries, 4 * pairs * widths.words},
                    {"scores", place.scores, 4 * pairs * dims.score_stride},
                    {"key_rows", place.key_rows, 4 * operands.panel_width * widths.words},
                    {"pair_values", layout.pair_values, 4 * 2 * pairs}}};
  if (dims.num_split_blocks > 0) {
    arrays.shared.push_back({"block_turns", layout.block_turns, kLine * dims.num_split_blocks});
  }
  return arrays;
}

Arrays SoftmaxLseArrays(const WorkspaceDims& dims, const WorkspaceLayout& layout) {
  Arrays arrays = CommonArrays(dims, layout, dims.indexer, layout.indexer);
  arrays.totals = {{"row_totals", layout.row_totals, 32 * dims.rows_per_block}};
  return arrays;
}

Arrays KLLossGradArrays(const WorkspaceDims& dims, const WorkspaceLayout& layout) {
  const Widths widths(dims.indexer);
  const int64_t pairs = dims.indexer.pairs_per_block;
  const auto words_of = [&](int64_t count) { return Widths::WordsOf(dims.indexer, count); };
  Arrays arrays = CommonArrays(dims, layout, dims.indexer, layout.indexer);
  Append({{"dk_sums", layout.dk_sums, 4 * dims.num_padded_keys * widths.values},
          {"chunk_tickets", layout.chunk_tickets, kLine * dims.num_chunks},
          {"chunk_finite", layout.chunk_finite, dims.num_chunks}},
         arrays.shared);
  if (dims.indexer.packs_keys_once) {
    Append({{"key_panels", layout.key_panels, 4 * widths.panels * words_of(dims.num_padded_keys)}},
           arrays.shared);
  }
  if (dims.num_split_blocks > 0) {
    Append({{"unit_sums", layout.unit_sums, 8 * dims.num_units * dims.rows_per_block}},
           arrays.shared);
  }
  arrays.totals = {{"dq_totals", layout.dq_totals, 4 * pairs * widths.values},
                   {"pair_totals", layout.pair_totals, 4 * 2 * pairs},
                   {"row_totals", layout.row_totals, 32 * dims.rows_per_block}};
  Append({{"query_columns", layout.query_columns,
           4 * dims.indexer.head_dim * RoundUp(words_of(pairs), 16)},
          {"chunk_panels", layout.chunk_panels, 4 * widths.panels * words_of(dims.keys_per_chunk)},
          {"dq_sums", layout.dq_sums, 4 * pairs * widths.values}},
         arrays.worker);
  if (dims.indexer.values_per_word == 2) {
    Append({{"ds_by_head", layout.ds_by_head, 4 * pairs * (dims.score_stride / 2)},
            {"ds_by_key", layout.ds_by_key, 4 * words_of(pairs) * dims.score_stride}},
           arrays.worker);
  }
  return arrays;
}

Arrays AttentionL1NormArrays(const WorkspaceDims& dims, const WorkspaceLayout& layout) {
  Arrays arrays = CommonArrays(dims, layout, dims.attention, layout.attention);
  arrays.totals = {{"pair_totals", layout.pair_totals, 4 * 2 * dims.attention.pairs_per_block}};
  arrays.worker.push_back(
      {"row_sums", layout.row_sums, 4 * dims.rows_per_block * dims.keys_per_chunk});
  return arrays;
}

// What is wrong with arrays that should lie apart, aligned, within [0, end); empty if nothing is.
std::string ArrayFault(const std::vector<Array>& arrays, int64_t end) {
  int64_t least = 0;
  for (const Array& array : arrays) {
    const std::string name(array.name);
    if (array.begin % kLine != 0) return name + " is not aligned";
    if (array.begin < 0 || array.begin + array.bytes > end) return name + " sticks out";
    for (const Array& other : arrays) {
      const bool apart =
          array.begin + array.bytes <= other.begin || other.begin + other.bytes <= array.begin;
      if (&array != &other && !apart) return name + " overlaps " + std::string(other.name);
    }
    least += array.bytes;
  }
  // Nothing is reserved beyond the arrays and their alignment.
  if (end >= least + kLine * static_cast<int64_t>(arrays.size() + 1)) return "too large";
  return "";
}

std::string Fault(const WorkspaceDims& dims, const WorkspaceLayout& layout, Arrays arrays) {
  if (layout.worker_bytes % kLine != 0) return "the workers' parts are not aligned";
  std::string fault = ArrayFault(arrays.worker, layout.worker_bytes);
  if (!fault.empty()) return fault;
  if (layout.totals_bytes % kLine != 0) return "the totals are not aligned";
  fault = ArrayFault(arrays.totals, layout.totals_bytes);
  if (!fault.empty()) return fault;
  const int64_t num_totals = dims.num_split_blocks > 0 ? dims.num_split_blocks : dims.num_workers;
  Append({{"the totals", layout.totals_begin, layout.totals_bytes * num_totals},
          {"the workers' parts", layout.worker_begin, layout.worker_bytes * dims.num_workers}},
         arrays.shared);
  return ArrayFault(arrays.shared, layout.bytes);
}

WorkspaceDims SomeDims() {
  WorkspaceDims dims;
  dims.num_padded_keys = 104;
  dims.num_chunks = 3;
  dims.indexer = {.head_dim = 13, .panel_width = 8, .pairs_per_block = 37};
  dims.attention = {.num_key_heads = 4, .head_dim = 13, .panel_width = 8, .pairs_per_block = 37};
  dims.rows_per_block = 5;
  dims.keys_per_chunk = 48;
  dims.score_stride = 49;
  dims.num_workers = 3;
  return dims;
}

testing::AssertionResult ArraysLieApart(const WorkspaceDims& dims) {
  WorkspaceLayout layout = LayOutSoftmaxLse(dims);
  std::string fault = Fault(dims, layout, SoftmaxLseArrays(dims, layout));
  if (!fault.empty()) return testing::AssertionFailure() << "SoftmaxLse: " << fault;
  layout = LayOutKLLossGrad(dims);
  fault = Fault(dims, layout, KLLossGradArrays(dims, layout));
  if (!fault.empty()) return testing::AssertionFailure() << "KLLossGrad: " << fault;
  layout = LayOutAttentionL1Norm(dims);
  fault = Fault(dims, layout, AttentionL1NormArrays(dims, layout));
  if (!fault.empty()) return testing::AssertionFailure() << "AttentionL1Norm: " << fault;
  return testing::AssertionSuccess();
}

TEST(Workspace, ArraysLieApart) { EXPECT_TRUE(ArraysLieApart(SomeDims())); }

TEST(Workspace, ArraysLieApartWhateverTheirSizes) {
  test::Random random(test::RunningTest());
  const auto size = [&] { return random.Below(6) == 0 ? 0 : random.Below(300); };
  for (int repeat = 0; repeat < 1000; ++repeat) {
    WorkspaceDims dims;
    dims.num_padded_keys = size();
    dims.num_chunks = size();
    dims.rows_per_block = size();
    dims.keys_per_chunk = size();
    dims.score_stride = size();
    dims.num_workers = 1 + random.Below(69);
    dims.num_split_blocks = random.Below(2) == 0 ? 0 : 1 + random.Below(100);
    dims.num_units = random.Below(200);
    for (OperandDims* operands : {&dims.indexer, &dims.attention}) {
      operands->head_dim = 1 + random.Below(299);
      operands->panel_width = 1 + random.Below(32);
      operands->pairs_per_block = size();
      operands->values_per_word = 1 + random.Below(2);
      operands->packs_keys_once = random.Below(2) == 0;
    }
    dims.attention.num_key_heads = 1 + random.Below(8);
    ASSERT_TRUE(ArraysLieApart(dims)) << "repeat " << repeat;
  }
}

TEST(Workspace, GrowsByOnePartPerWorker) {
  WorkspaceDims dims = SomeDims();
  for (const auto lay_out : {LayOutSoftmaxLse, LayOutKLLossGrad, LayOutAttentionL1Norm}) {
    dims.num_workers = 1;
    const WorkspaceLayout one = lay_out(dims);
    dims.num_workers = 7;
    const WorkspaceLayout seven = lay_out(dims);
    EXPECT_EQ(seven.totals_begin, one.totals_begin);
    EXPECT_EQ(seven.totals_bytes, one.totals_bytes);
    EXPECT_EQ(seven.worker_bytes, one.worker_bytes);
    EXPECT_EQ(seven.bytes, one.bytes + 6 * (one.totals_bytes + one.worker_bytes));
  }
}

// A size that no 64-bit number holds is reported as the largest one, which no host can give.
TEST(Workspace, SaturatesWhereItDoesNotFit) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const auto set = [](WorkspaceDims& dims, int64_t OperandDims::* member, int64_t value) {
    dims.indexer.*member = value;
    dims.attention.*member = value;
  };
  for (const auto lay_out : {LayOutSoftmaxLse, LayOutKLLossGrad, LayOutAttentionL1Norm}) {
    WorkspaceDims dims = SomeDims();
    dims.num_padded_keys = int64_t{1} << 40;
    set(dims, &OperandDims::head_dim, int64_t{1} << 40);
    EXPECT_EQ(lay_out(dims).bytes, kMax) << "keys";
    dims = SomeDims();
    set(dims, &OperandDims::head_dim, kMax);
    EXPECT_EQ(lay_out(dims).bytes, kMax) << "one row";
    dims = SomeDims();
    set(dims, &OperandDims::pairs_per_block, int64_t{1} << 40);
    dims.score_stride = int64_t{1} << 40;
    EXPECT_EQ(lay_out(dims).bytes, kMax) << "one worker's part";
    dims = SomeDims();
    dims.num_workers = int64_t{1} << 55;
    EXPECT_EQ(lay_out(dims).bytes, kMax) << "all workers' parts";
    dims = SomeDims();
    dims.num_padded_keys = kMax / 4 / dims.indexer.head_dim;
    EXPECT_EQ(lay_out(dims).bytes, kMax) << "the sum";
  }
}

}  // namespace
}  // namespace kindling
