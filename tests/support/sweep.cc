#include "support/sweep.h"

#include <rapidcheck.h>
#include <rapidcheck/detail/TestListenerAdapter.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "support/build_kind.h"
#include "support/random.h"

namespace kindling::test {
namespace {

using rc::detail::Reproduce;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr Layout kLayouts[] = {Layout::kTnd, Layout::kBsnd};
constexpr Spread kSpreads[] = {Spread::kDense, Spread::kGaps, Spread::kReversed,
                               Spread::kTransposed};
// Around vectors of 4 to 16 lanes, panels of 8 to 64 columns, tiles of 4 to 8 rows, chunks of 256
// keys.
constexpr int64_t kKeyCounts[] = {1, 15, 16, 17, 255, 256, 257, 600};
constexpr int64_t kHeadCounts[] = {1, 3, 6, 7, 8, 40, 64, 300};
constexpr int64_t kWidths[] = {1, 5, 16, 32, 100, 128, 130};
constexpr int64_t kPairsPerBlock = 256;

// The case from the environment; null if there is none, and a failure if it cannot be read.
const Case* CaseFromEnvironment() {
  static const std::optional<Case> found = []() -> std::optional<Case> {
    const char* text = std::getenv("KINDLING_CASE");
    if (text == nullptr) return std::nullopt;
    std::optional<Case> spec = ParseCase(text);
    EXPECT_TRUE(spec.has_value()) << "KINDLING_CASE is not a case: " << text;
    return spec;
  }();
  return found.has_value() ? &*found : nullptr;
}

// A list in which the properties that have no edges take turns.
class EdgeList {
 public:
  void Add(int64_t num_heads, int64_t head_dim, std::vector<int64_t> num_rows,
           std::vector<int64_t> num_keys) {
    const size_t turn = cases_.size();
    Case spec;
    spec.layout_q = kLayouts[turn % 2];
    spec.layout_k = kLayouts[turn / 2 % 2];
    spec.dtype = kDTypes[turn % 3];
    spec.mask_mode = turn % 5 < 3 ? MaskMode::kCausal : MaskMode::kNone;
    spec.num_heads = num_heads;
    spec.head_dim = head_dim;
    spec.num_rows = std::move(num_rows);
    spec.num_keys = std::move(num_keys);
    spec.spare_columns = static_cast<int64_t>(turn % 4);
    spec.spread = kSpreads[turn % 7 % 4];
    spec.row_scale = turn % 3 == 1;
    spec.wide_grads = turn % 4 == 1;
    cases_.push_back(std::move(spec));
  }
  void Add(Case spec) { cases_.push_back(std::move(spec)); }
  std::vector<Case> Take() { return std::move(cases_); }

 private:
  std::vector<Case> cases_;
};

void AddRaggedCases(EdgeList& list) {
  const std::vector<std::vector<int64_t>> lengths[] = {
      // rows, keys, residuals at a ratio of 4
      {{3, 0, 4, 1}, {5, 2, 0, 1}, {0, 3, 2, 1}},
      {{0, 0}, {4, 0}, {0, 0}},
      {{2, 3}, {0, 0}, {0, 0}},
      {{16, 18, 10}, {4, 4, 3}, {0, 2, 1}},
      {{70, 0, 33, 64}, {300, 10, 17, 256}, {3, 0, 1, 2}},
  };
  int64_t turn = 0;
  for (const auto& ragged : lengths) {
    for (const Layout layout_q : kLayouts) {
      for (const Layout layout_k : kLayouts) {
        Case spec;
        spec.layout_q = layout_q;
        spec.layout_k = layout_k;
        spec.num_heads = 4;
        spec.head_dim = 6;
        spec.num_rows = ragged[0];
        spec.num_keys = ragged[1];
        spec.dtype = kDTypes[turn % 3];
        spec.mask_mode = MaskMode::kCausal;
        spec.spare_rows = turn % 3;
        spec.spare_keys = turn % 2;
        list.Add(spec);
        spec.mask_mode = MaskMode::kNone;
        spec.spare_columns = 5;
        list.Add(spec);
        spec.mask_mode = MaskMode::kCausal;
        spec.cmp_ratio = 4;
        spec.residual = ragged[2];
        spec.residual.resize(spec.num_rows.size());
        list.Add(spec);
        ++turn;
      }
    }
  }
  Case longest_ratio;
  longest_ratio.mask_mode = MaskMode::kCausal;
  longest_ratio.cmp_ratio = 128;
  longest_ratio.residual = {127};
  longest_ratio.num_heads = 2;
  longest_ratio.head_dim = 3;
  longest_ratio.num_rows = {260};
  longest_ratio.num_keys = {2};
  list.Add(longest_ratio);
  Case no_batches;
  list.Add(no_batches);
}

Case GenerateCase(const CaseRange& range) {
  const auto pick = [](auto&& values) {
    using Value = std::remove_cvref_t<decltype(*std::begin(values))>;
    return *rc::gen::elementOf(std::vector<Value>(std::begin(values), std::end(values)));
  };
  const auto below = [](int64_t bound) { return *rc::gen::inRange<int64_t>(0, bound); };
  Case spec;
  spec.layout_q = pick(kLayouts);
  spec.layout_k = pick(kLayouts);
  spec.dtype = pick(kDTypes);
  spec.mask_mode = pick(std::vector<MaskMode>{MaskMode::kNone, MaskMode::kCausal});
  spec.cmp_ratio = pick(std::vector<int64_t>{1, 2, 4, 13});
  spec.num_heads = pick(kHeadCounts);
  const int64_t divisor = pick(range.key_head_divisors);
  spec.num_key_heads = spec.num_heads % divisor == 0 ? spec.num_heads / divisor : 1;
  spec.head_dim = pick(kWidths);
  const int64_t num_batches = 1 + below(3);
  for (int64_t b = 0; b < num_batches; ++b) {
    spec.num_rows.push_back(below(71));
    spec.num_keys.push_back(below(3) == 0 ? below(40) : pick(kKeyCounts));
    spec.residual.push_back(below(spec.cmp_ratio));
  }
  spec.spare_rows = below(3);
  spec.spare_keys = below(3);
  spec.spare_columns = below(20);
  spec.spread = pick(kSpreads);
  spec.row_scale = below(2) == 1;
  spec.wide_grads = below(2) == 1;
  while (NumMultiplyAdds(spec) > range.max_multiply_adds) {
    auto& rows = *std::max_element(spec.num_rows.begin(), spec.num_rows.end());
    auto& keys = *std::max_element(spec.num_keys.begin(), spec.num_keys.end());
    int64_t& largest = rows > 4 ? rows : keys > 1 ? keys : spec.head_dim > 1 ? spec.head_dim : rows;
    if (largest <= 1) break;
    largest -= largest / 2;
  }
  return spec;
}

}  // namespace

std::vector<Case> EdgeCases() {
  EdgeList list;
  for (const int64_t num_keys : kKeyCounts) {
    list.Add(3, 16, {7}, {num_keys});
    list.Add(2, 4, {2, 9}, {num_keys, num_keys});
  }
  for (const int64_t num_heads : kHeadCounts) {
    // One block of rows, and the first row of another.
    list.Add(num_heads, 5, {std::max<int64_t>(1, kPairsPerBlock / num_heads) + 1}, {21});
  }
  for (const int64_t width : kWidths) list.Add(2, width, {9}, {40});
  for (const int64_t num_rows : {1, 2, 3, 5, 6, 7, 12, 13, 31, 32, 33, 64, 70}) {
    list.Add(8, 8, {num_rows}, {19});
  }
  AddRaggedCases(list);
  return list.Take();
}

void ForEachCase(std::vector<Case> cases, const CheckCase& check) {
  if (const Case* only = CaseFromEnvironment()) cases = {*only};
  for (Case& spec : cases) {
    if (spec.seed.empty()) spec.seed = RunningTest();
    EXPECT_TRUE(check(spec));
  }
}

void ForGeneratedCases(const CaseRange& range, const CheckCase& check) {
  if (CaseFromEnvironment() != nullptr) return ForEachCase({}, check);
  rc::detail::TestParams params;
  params.seed = Hash(RunningTest());
  params.maxSuccess = kSanitized ? std::max(3, range.num_cases / 8) : range.num_cases;
  const auto property = [&] {
    Case spec = GenerateCase(range);
    spec.seed = RunningTest();
    const testing::AssertionResult result = check(spec);
    if (!result) RC_FAIL(result.message());
  };
  rc::detail::TestMetadata metadata;
  metadata.id = metadata.description = RunningTest();
  rc::detail::TestListenerAdapter listener;
  const auto result = rc::detail::checkTestable(property, metadata, params, listener,
                                                std::unordered_map<std::string, Reproduce>());
  if (result.is<rc::detail::SuccessResult>()) return;
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  ADD_FAILURE() << message.str();
}

}  // namespace kindling::test
