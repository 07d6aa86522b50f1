// The metadata operator with its default policy, from lengths to words. The split alone is tested
// in split_test.cc, balanced plans in balance_test.cc and plan_test.cc.
#include "kindling/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "problem/faults.h"
#include "problem/lengths_case.h"
#include "support/random.h"

namespace kindling {
namespace {

using test::Form;
using test::LengthsCase;
using test::MakeCase;
using Words = std::array<int32_t, kMetadataWords>;

constexpr Form kForms[] = {Form::kPacked, Form::kPackedUsed, Form::kPadded, Form::kUniform};

Words WordsOf(const Metadata& record) { return std::bit_cast<Words>(record); }

// Whether the rows that the words give to cores 0, 1, ... are every row below word 0 once. Core c
// takes rows c, c + w4, c + 2*w4, ...
bool CoversEveryRowOnce(const Words& words, int64_t num_cores) {
  std::vector<int> times(words[0], 0);
  for (int64_t core = 0; core < num_cores && core < words[4]; ++core) {
    const int64_t size = core < num_cores - words[3] ? words[1] : words[2];
    for (int64_t i = 0; i < size; ++i) {
      const int64_t row = core + i * words[4];
      if (row >= words[0]) return false;
      ++times[row];
    }
  }
  return std::all_of(times.begin(), times.end(), [](int count) { return count == 1; });
}

// Numbers 0, 1, 2, ... read as `num_digits` digits.
std::vector<int32_t> Digits(int64_t number, int64_t num_digits, int64_t base) {
  std::vector<int32_t> digits;
  for (int64_t i = 0; i < num_digits; ++i, number /= base) {
    digits.push_back(static_cast<int32_t>(number % base));
  }
  return digits;
}

int64_t Power(int64_t base, int64_t exponent) {
  int64_t power = 1;
  while (exponent-- > 0) power *= base;
  return power;
}

// Up to three batches of lengths up to 5, up to 6 cores. One or two batches come with both masks
// and every residual of ratios up to 3; with three, masks and residuals take turns. The forms of
// the two sides take turns throughout.
class SmallBatches : public ::testing::Test {
 protected:
  static constexpr int64_t kMaxLength = 5;
  static constexpr int64_t kMaxCores = 6;

  void Check(const std::vector<int32_t>& num_rows, const std::vector<int32_t>& num_keys,
             int64_t mask_mode, int64_t ratio, const std::vector<int32_t>& residual) {
    LengthsCase lengths = MakeCase(NextForm(num_rows), NextForm(num_keys), num_rows, num_keys);
    lengths.mask_mode = mask_mode;
    lengths.cmp_ratio = ratio;
    lengths.residual = residual;
    const int64_t total = std::accumulate(num_rows.begin(), num_rows.end(), 0);
    const int32_t longest = *std::max_element(num_keys.begin(), num_keys.end());
    MetadataArgs args = lengths.Args();
    for (args.num_cores = 1; args.num_cores <= kMaxCores; ++args.num_cores) {
      const Result<Metadata> record = MakeMetadata(args);
      ASSERT_TRUE(record.ok()) << record.status().message();
      Words words = WordsOf(record.value());
      ASSERT_EQ(words[0], total);
      ASSERT_EQ(words[5], longest);
      words[5] = 0;
      // Words 0..4 and the reserved ones are a function of the row and core counts.
      const auto [seen, is_new] = seen_.try_emplace({total, args.num_cores}, words);
      if (is_new) {
        ASSERT_TRUE(CoversEveryRowOnce(words, args.num_cores));
      } else {
        ASSERT_EQ(words, seen->second);
      }
    }
    ++num_cases_;
  }

  Form NextForm(const std::vector<int32_t>& lengths) {
    const Form form = kForms[turn_++ / 3 % 4];
    const bool fits = lengths[0] > 0 && std::count(lengths.begin(), lengths.end(), lengths[0]) ==
                                            static_cast<int64_t>(lengths.size());
    return form == Form::kUniform && !fits ? Form::kPadded : form;
  }

  std::map<std::pair<int64_t, int64_t>, Words> seen_;
  int64_t turn_ = 0;
  int64_t num_cases_ = 0;
};

TEST_F(SmallBatches, OneOrTwo) {
  for (int64_t num_batches = 1; num_batches <= 2; ++num_batches) {
    const int64_t num_lengths = Power(kMaxLength + 1, num_batches);
    for (int64_t code = 0; code < num_lengths * num_lengths && !HasFatalFailure(); ++code) {
      const auto num_rows = Digits(code % num_lengths, num_batches, kMaxLength + 1);
      const auto num_keys = Digits(code / num_lengths, num_batches, kMaxLength + 1);
      for (const int64_t mask_mode : {0, 3}) {
        for (int64_t ratio = 1; ratio <= 3; ++ratio) {
          for (int64_t residual = 0; residual < Power(ratio, num_batches); ++residual) {
            Check(num_rows, num_keys, mask_mode, ratio, Digits(residual, num_batches, ratio));
          }
        }
      }
    }
  }
  EXPECT_EQ(num_cases_, 36 * 2 * (1 + 2 + 3) + 1296 * 2 * (1 + 4 + 9));
  EXPECT_EQ(seen_.size(), 11u * kMaxCores);
}

TEST_F(SmallBatches, Three) {
  const int64_t num_lengths = Power(kMaxLength + 1, 3);
  for (int64_t code = 0; code < num_lengths * num_lengths && !HasFatalFailure(); ++code) {
    const int64_t ratio = 1 + code % 3;
    Check(Digits(code % num_lengths, 3, kMaxLength + 1),
          Digits(code / num_lengths, 3, kMaxLength + 1), code % 2 * 3, ratio,
          Digits(code * 7 % 27, 3, ratio));
  }
  EXPECT_EQ(num_cases_, 46656);
  EXPECT_EQ(seen_.size(), 16u * kMaxCores);
}

TEST(MakeMetadataOf, RandomLargeBatches) {
  test::Random random(test::RunningTest());
  for (int repeat = 0; repeat < 600; ++repeat) {
    const int32_t limits[] = {10, 1000, 30000000};
    const int32_t limit = limits[repeat % 3];
    const auto num_batches = static_cast<size_t>(1 + random.Below(59));
    std::vector<int32_t> num_rows(num_batches), num_keys(num_batches);
    for (int32_t& length : num_rows) length = static_cast<int32_t>(random.Below(limit));
    for (int32_t& length : num_keys) length = static_cast<int32_t>(random.Below(limit));
    const Form form_q = kForms[random.Below(3)];
    const Form form_k = kForms[random.Below(3)];
    LengthsCase lengths = MakeCase(form_q, form_k, num_rows, num_keys);
    lengths.num_cores = 1 + random.Below(3000);
    const Result<Metadata> record = MakeMetadata(lengths.Args());
    ASSERT_TRUE(record.ok()) << record.status().message();
    const Words words = WordsOf(record.value());
    const int64_t total = std::accumulate(num_rows.begin(), num_rows.end(), int64_t{0});
    const int64_t w1 = words[1], w2 = words[2], w3 = words[3];
    ASSERT_EQ(words[0], total) << repeat;
    ASSERT_EQ((lengths.num_cores - w3) * w1 + w3 * w2, total) << repeat;
    ASSERT_EQ(words[4], std::min(total, lengths.num_cores)) << repeat;
    ASSERT_EQ(words[5], *std::max_element(num_keys.begin(), num_keys.end())) << repeat;
    ASSERT_TRUE(std::all_of(words.begin() + 6, words.end(), [](int32_t w) { return w == 0; }));
    ASSERT_TRUE(total >= 100000 || CoversEveryRowOnce(words, lengths.num_cores)) << repeat;
    const Result<Problem> problem = Problem::Create(lengths.Args());
    ASSERT_TRUE(problem.ok()) << problem.status().message();
    ASSERT_TRUE(ValidateMetadata(record.value(), problem.value()).ok()) << repeat;
  }
}

// Nothing walks 2^60 batches, or reserves memory for them.
TEST(MakeMetadataOf, HugeAttributesAnswerAtOnce) {
  const auto dense = [](int64_t batch_size, int64_t max_seqlen_q, int64_t max_seqlen_k) {
    LengthsCase lengths;
    lengths.layout_q = lengths.layout_k = "BSND";
    lengths.batch_size = batch_size;
    lengths.max_seqlen_q = max_seqlen_q;
    lengths.max_seqlen_k = max_seqlen_k;
    return lengths;
  };
  constexpr int64_t kHuge = int64_t{1} << 60;
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const struct {
    LengthsCase lengths;
    std::string_view argument;
  } cases[] = {{dense(kHuge, 1, 1), "batch_size"},          {dense(kLargest, 4, 1), "batch_size"},
               {dense(kHuge, 1 << 30, 7), "batch_size"},    {dense(2147483648, 1, 1), "batch_size"},
               {dense(1, kHuge, 1), "max_seqlen_q"},        {dense(1, 1, kLargest), "max_seqlen_k"},
               {dense(kHuge, kHuge, kHuge), "max_seqlen_q"}};
  for (const auto& [lengths, argument] : cases) {
    for (const PlanPolicy policy : {PlanPolicy::kRows, PlanPolicy::kBalanced}) {
      MetadataArgs args = lengths.Args();
      args.policy = policy;
      int32_t words[kMetadataWords] = {77};
      const Tensor out(words, DType::kInt32, {kMetadataWords});
      const Status status = MakeMetadata(args, out);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_EQ(test::ArgumentOf(status), argument) << status.message();
      EXPECT_EQ(words[0], 77);
      EXPECT_EQ(Problem::Create(args).status().code(), StatusCode::kInvalidArgument);
    }
  }
  // In TND the lengths come from the tensors, whatever max_seqlen says.
  LengthsCase packed = MakeCase(Form::kPacked, Form::kPacked, {3}, {4});
  packed.max_seqlen_q = packed.max_seqlen_k = kLargest;
  packed.num_cores = 2147483647;
  EXPECT_EQ(WordsOf(MakeMetadata(packed.Args()).value())[3], 2147483644);
}

TEST(MakeMetadataOf, LongestKeyLengthIsThatOfAllBatches) {
  LengthsCase lengths = MakeCase(Form::kPacked, Form::kPacked, {3, 0, 2}, {4, 90, 0});
  EXPECT_EQ(MakeMetadata(lengths.Args()).value().max_seq_k, 90) << "of one without rows";
  lengths = MakeCase(Form::kPacked, Form::kPackedUsed, {3, 2}, {4, 1});
  EXPECT_EQ(MakeMetadata(lengths.Args()).value().max_seq_k, 4) << "used, not allocated";
  lengths = MakeCase(Form::kPacked, Form::kPadded, {0, 0}, {6, 1});
  EXPECT_EQ(MakeMetadata(lengths.Args()).value().max_seq_k, 6) << "without any rows";
}

TEST(MakeMetadataOf, LargestProblem) {
  LengthsCase lengths;
  lengths.layout_q = lengths.layout_k = "BSND";
  lengths.batch_size = 1;
  lengths.max_seqlen_q = lengths.max_seqlen_k = 2147483647;
  lengths.num_cores = 2;
  const Words words = WordsOf(MakeMetadata(lengths.Args()).value());
  EXPECT_EQ(words[0], 2147483647);
  EXPECT_EQ(words[1], 1073741824);
  EXPECT_EQ(words[2], 1073741823);
  EXPECT_EQ(words[3], 1);
  EXPECT_EQ(words[4], 2);
  EXPECT_EQ(words[5], 2147483647);
}

// Nothing is kept from call to call, failed ones included.
TEST(MakeMetadataOf, CallsAreIndependent) {
  const LengthsCase first = MakeCase(Form::kPacked, Form::kPacked, {30, 12}, {5, 7});
  LengthsCase wrong = first;
  wrong.cu_q[1] = -1;
  const Words words = WordsOf(MakeMetadata(first.Args()).value());
  EXPECT_EQ(words[0], 42);
  EXPECT_FALSE(MakeMetadata(wrong.Args()).ok());
  EXPECT_EQ(WordsOf(MakeMetadata(first.Args()).value()), words);
}

TEST(MakeMetadataOf, ManyThreadsGetTheSameAnswers) {
  std::vector<LengthsCase> cases;
  std::vector<Words> expected;
  for (int32_t i = 0; i < 12; ++i) {
    cases.push_back(MakeCase(kForms[i % 3], kForms[i / 3 % 3], {i, 2 * i, 7}, {9, 3, 4 * i}));
    cases.back().num_cores = 1 + i % 5;
    expected.push_back(WordsOf(MakeMetadata(cases.back().Args()).value()));
  }
  std::atomic<int> num_wrong{0};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = 0; i < 3000; ++i) {
        const size_t which = (i + 5 * thread) % cases.size();
        const Result<Metadata> record = MakeMetadata(cases[which].Args());
        if (!record.ok() || WordsOf(record.value()) != expected[which]) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

constexpr int32_t kUntouched = 0x5a5a5a5a;

// The caller's memory, recognisable where nothing is written.
struct Memory {
  Memory() { std::fill(std::begin(words), std::end(words), kUntouched); }
  bool untouched() const {
    return std::all_of(std::begin(words), std::end(words),
                       [](int32_t word) { return word == kUntouched; });
  }
  int32_t words[192];
};

TEST(MakeMetadataInto, AnyStride) {
  const LengthsCase lengths = MakeCase(Form::kPacked, Form::kPacked, {30, 12}, {5, 7});
  const Words expected = WordsOf(MakeMetadata(lengths.Args()).value());
  for (const int64_t stride : {1, 2, 3, -1, -3}) {
    Memory memory;
    const int64_t origin = stride < 0 ? -stride * (kMetadataWords - 1) : 0;
    const Tensor out(memory.words + origin, DType::kInt32, 1, {kMetadataWords}, {stride});
    const Status status = MakeMetadata(lengths.Args(), out);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t word = 0; word < kMetadataWords; ++word) {
      EXPECT_EQ(memory.words[origin + word * stride], expected[word]) << stride;
      memory.words[origin + word * stride] = kUntouched;
    }
    EXPECT_TRUE(memory.untouched()) << "between or behind the words, stride " << stride;
  }
}

TEST(MakeMetadataInto, OverwritesWhateverWasThere) {
  LengthsCase lengths = MakeCase(Form::kPacked, Form::kPacked, {0}, {0});
  Memory memory;
  const Tensor out(memory.words, DType::kInt32, {kMetadataWords});
  ASSERT_TRUE(MakeMetadata(lengths.Args(), out).ok());
  for (int64_t word = 0; word < kMetadataWords; ++word) EXPECT_EQ(memory.words[word], 0) << word;
}

TEST(MakeMetadataInto, LeavesTheMemoryAloneOnEveryFault) {
  for (const test::Fault& fault : test::AllFaults()) {
    Memory memory;
    test::MetadataCall call = test::ValidCall(memory.words);
    fault.apply(call);
    const Status status = MakeMetadata(call.args, call.metadata);
    EXPECT_EQ(status.code(), fault.code) << fault.Name() << ": " << status.message();
    EXPECT_EQ(test::ArgumentOf(status), fault.argument) << fault.Name() << ": " << status.message();
    EXPECT_TRUE(memory.untouched()) << fault.Name();
  }
}

// The tensor's own checks (20, 22, 29) among all others, and all others once more through the
// front.
TEST(MakeMetadataInto, ReportsTheEarlierOfTwoFaults) {
  const std::vector<test::Fault> faults = test::AllFaults();
  std::map<int, int> num_pairs;
  Memory memory;
  for (const test::Fault& first : faults) {
    for (const test::Fault& second : faults) {
      if (!first.Before(second) || !first.GoesWith(second)) continue;
      test::MetadataCall call = test::ValidCall(memory.words);
      first.apply(call);
      second.apply(call);
      const Status status = MakeMetadata(call.args, call.metadata);
      ASSERT_EQ(status.code(), first.code)
          << first.Name() << " and " << second.Name() << ": " << status.message();
      ASSERT_EQ(test::ArgumentOf(status), first.argument)
          << first.Name() << " and " << second.Name() << ": " << status.message();
      ++num_pairs[first.number];
      ++num_pairs[second.number];
    }
  }
  EXPECT_TRUE(memory.untouched());
  for (const int number : {20, 22, 29}) EXPECT_GE(num_pairs[number], 60) << number;
}

// Without a tensor the record's own checks do not exist; the others stay.
TEST(MakeMetadataOf, FindsTheFaultsOfTheArguments) {
  Memory memory;
  for (const test::Fault& fault : test::AllFaults()) {
    const bool is_of_tensor = fault.number == 20 || fault.number == 22 || fault.number == 29;
    test::MetadataCall call = test::ValidCall(memory.words);
    fault.apply(call);
    const Status status = MakeMetadata(call.args).status();
    EXPECT_EQ(status.code(), is_of_tensor ? StatusCode::kOk : fault.code) << fault.Name();
    EXPECT_EQ(test::ArgumentOf(status), is_of_tensor ? "" : fault.argument) << fault.Name();
  }
}

}  // namespace
}  // namespace kindling
