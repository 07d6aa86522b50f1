#include "support/case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "support/problem.h"
#include "support/random.h"
#include "support/sweep.h"

namespace kindling::test {
namespace {

TEST(Case, SurvivesItsText) {
  for (const Case& spec : EdgeCases()) {
    const std::optional<Case> read = ParseCase(ToString(spec));
    ASSERT_TRUE(read.has_value()) << spec;
    EXPECT_EQ(ToString(*read), ToString(spec));
  }
  Case spec;
  spec.layout_k = Layout::kBsnd;
  spec.dtype = DType::kBFloat16;
  spec.num_rows = {3, 0};
  spec.num_keys = {5, 70};
  spec.residual = {1, 0};
  spec.spread = Spread::kReversed;
  spec.wide_grads = true;
  spec.seed = "Suite.Test/1";
  EXPECT_EQ(ToString(spec),
            "q=TND k=BSND dtype=bf16 mask=0 ratio=1 heads=1 key_heads=1 dim=1 rows=3,0 keys=5,70 "
            "residual=1,0 spare_rows=0 spare_keys=0 spare_columns=0 spread=reversed row_scale=no "
            "wide_grads=yes seed=Suite.Test/1");
}

TEST(Case, ReadsWhatIsThereAndRefusesTheRest) {
  const std::optional<Case> read = ParseCase("rows=3 keys=4 mask=3");
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->num_rows, std::vector<int64_t>{3});
  EXPECT_EQ(read->mask_mode, MaskMode::kCausal);
  EXPECT_EQ(read->num_heads, 1);
  for (const char* text : {"rows", "rows=x", "rows=1,,2 keys=1,1,1", "colour=red", "dtype=fp8",
                           "rows=1 keys=1,2", "mask=1"}) {
    EXPECT_FALSE(ParseCase(text).has_value()) << text;
  }
}

TEST(Case, ReproduceCommandNamesTheTestAndTheCase) {
  Case spec;
  spec.num_rows = spec.num_keys = {2};
  const std::string command = ReproduceCommand(spec);
  EXPECT_NE(command.find("KINDLING_CASE='" + ToString(spec) + "' "), std::string::npos) << command;
  EXPECT_NE(command.find(" --gtest_filter=Case.ReproduceCommandNamesTheTestAndTheCase"),
            std::string::npos)
      << command;
}

TEST(Case, PlacementOfPackedAndDenseBatches) {
  Case spec;
  spec.num_rows = {3, 0, 5};
  spec.num_keys = {2, 7, 4};
  spec.spare_rows = 1;
  Placement packed(spec);
  EXPECT_EQ(packed.num_allocated_rows, 4 + 1 + 6);
  EXPECT_EQ(packed.batches[2].row_begin, 5);
  EXPECT_EQ(packed.batches[2].key_begin, 9);
  EXPECT_EQ(packed.num_columns, 4);  // the longest key count that a row sees
  spec.layout_q = Layout::kBsnd;
  Placement mixed(spec);
  EXPECT_EQ(mixed.num_allocated_rows, 3 * 6);
  EXPECT_EQ(mixed.batches[2].row_begin, 12);
  EXPECT_EQ(mixed.batches[2].key_begin, 9);
  spec.layout_k = Layout::kBsnd;
  EXPECT_EQ(Placement(spec).num_columns, 7);
  EXPECT_EQ(RowShape(spec, {8}), (std::vector<int64_t>{3, 6, 8}));
  EXPECT_EQ(LseShape(spec), (std::vector<int64_t>{3, 1, 6}));
}

TEST(Case, LengthTensorsArePresentWhereNeeded) {
  Case spec;
  spec.num_rows = {3, 5};
  spec.num_keys = {4, 4};
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  const LengthTensors dense(spec);
  EXPECT_FALSE(dense.cu_seqlens_q.present());
  EXPECT_TRUE(dense.seqused_q.present());   // 3 of 5 rows
  EXPECT_FALSE(dense.seqused_k.present());  // all
  spec.layout_q = Layout::kTnd;
  const LengthTensors mixed(spec);
  EXPECT_EQ(mixed.cu_seqlens_q.size(), 3);
  EXPECT_EQ(mixed.cu_seqlens_q.Get(2), 8.0);
  EXPECT_FALSE(mixed.seqused_q.present());
}

// The problem that the library sees is the one that the tests see.
TEST(Case, AgreesWithTheLibrarysProblem) {
  for (const Case& spec : EdgeCases()) {
    if (spec.num_rows.empty()) continue;  // the metadata operator wants a batch
    const LengthTensors lengths(spec);
    const Placement placement(spec);
    MetadataArgs args;
    lengths.Describe(spec, args);
    args.num_heads_q = args.num_heads_k = 1;
    args.head_dim = 128;
    args.batch_size = spec.num_batches();
    args.max_seqlen_q = placement.batches[0].num_allocated_rows;
    args.max_seqlen_k = placement.batches[0].num_allocated_keys;
    if (args.max_seqlen_q == 0 || args.max_seqlen_k == 0) continue;
    const Result<Problem> problem = Problem::Create(args);
    ASSERT_TRUE(problem.ok()) << problem.status().message() << "\n" << spec;
    const std::vector<RowPlace> rows = UsedRows(spec);
    ASSERT_EQ(problem.value().num_rows(), static_cast<int64_t>(rows.size())) << spec;
    for (size_t row = 0; row < rows.size(); ++row) {
      const RowCoordinates at = problem.value().Locate(static_cast<int64_t>(row));
      EXPECT_EQ(at.storage_row, rows[row].row);
      EXPECT_EQ(at.key_begin, rows[row].key_begin);
      EXPECT_EQ(at.num_visible_keys, rows[row].num_visible) << spec << ", row " << row;
    }
  }
}

TEST(Random, DependsOnItsSeedAlone) {
  EXPECT_EQ(Random("a").Bits(), Random("a").Bits());
  EXPECT_NE(Random("a").Bits(), Random("b").Bits());
  // FNV-1a, by another implementation.
  EXPECT_EQ(Hash("kindling"), 0x665d5312186736e3u);
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random("normal");
  constexpr int kCount = 100'000;
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double x = random.Normal();
    EXPECT_LT(std::abs(x), 3.5);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.02);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

TEST(Indexer, IsAFunctionOfItsCase) {
  Case spec;
  spec.num_rows = {3};
  spec.num_keys = {20};
  EXPECT_TRUE(Indexer(spec).q.SameMemory(Indexer(spec).q));
  Case other = spec;
  other.seed = "other";
  EXPECT_FALSE(Indexer(spec).k.SameMemory(Indexer(other).k));
}

TEST(Indexer, HidesWhatMustNotBeRead) {
  Case spec;
  spec.mask_mode = MaskMode::kCausal;
  spec.layout_q = spec.layout_k = Layout::kBsnd;
  spec.num_rows = {4};
  spec.num_keys = {2};
  spec.spare_rows = spec.spare_keys = 1;
  const Indexer problem(spec);
  // Rows 0 and 1 see no key, rows 2 and 3 see one and two, row 4 is unused.
  for (int64_t row = 0; row < 5; ++row) {
    const bool hidden = row < 2 || row == 4;
    EXPECT_EQ(std::isnan(problem.q.Get(row)), hidden);
    EXPECT_EQ(std::isnan(problem.w.Get(row)), hidden);
    EXPECT_EQ(std::isnan(problem.lse.Get(row)), hidden);
    for (int64_t key = 0; key < 3; ++key) {
      EXPECT_EQ(std::isnan(problem.p.Get(row * 3 + key)), hidden || key > row - 2) << row;
    }
  }
  for (int64_t key = 0; key < 3; ++key) EXPECT_EQ(std::isnan(problem.k.Get(key)), key == 2);
  for (int64_t row = 0; row < 5; ++row) {
    EXPECT_TRUE(std::isfinite(Indexer(spec, Hidden::kFinite).q.Get(row)));
  }
}

}  // namespace
}  // namespace kindling::test
