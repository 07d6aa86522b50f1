// Operands that are pairs of bf16 values: loaded, packed, multiplied, and made of scores.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/float16.h"
#include "kernels/kernel_test.h"
#include "support/isas.h"
#include "support/owned_tensor.h"

namespace kindling::test {
namespace {

// The tables for bf16 that take such operands; the emulated twin of this program has all of them on
// every x86 processor.
class Bf16Operands : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (kernels_->values_per_word != 2) GTEST_SKIP() << "this set multiplies fp32";
  }

  std::vector<uint16_t> Halves(int64_t count) {
    std::vector<uint16_t> halves(count);
    for (uint16_t& half : halves) half = Bf16FromFp32(static_cast<float>(random_.Normal()));
    return halves;
  }

  const KernelTable* kernels_ = KernelsFor(GetParam(), DType::kBFloat16);
  Random random_{RunningTest()};
};

uint16_t Low(Word word) { return static_cast<uint16_t>(BitsOf(word)); }
uint16_t High(Word word) { return static_cast<uint16_t>(BitsOf(word) >> 16); }
Word Join(uint16_t low, uint16_t high) {
  return std::bit_cast<Word>(uint32_t{low} | uint32_t{high} << 16);
}

TEST_P(Bf16Operands, LoadWordsJoinsNeighbours) {
  for (int64_t count = 0; count <= 70; ++count) {
    for (const int64_t stride : {1, 2, 3, -1}) {
      const std::vector<uint16_t> row = Halves(count * 3 + 1);
      const uint16_t* first = stride < 0 ? &row[count] : row.data();
      std::vector<Word> words((count + 1) / 2 + 1, Join(7, 7));
      EXPECT_TRUE(kernels_->load_words(first, DType::kBFloat16, stride, count, words.data()));
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t got = i % 2 == 0 ? Low(words[i / 2]) : High(words[i / 2]);
        ASSERT_EQ(got, first[i * stride]) << count << ", stride " << stride;
      }
      if (count % 2 == 1) {
        ASSERT_EQ(High(words[count / 2]), 0) << count;
      }
      ASSERT_EQ(BitsOf(words.back()), BitsOf(Join(7, 7))) << "written behind the row";
    }
  }
}

TEST_P(Bf16Operands, LoadWordsFindsTheNonFiniteHalfAnywhere) {
  for (int64_t count = 1; count <= 70; ++count) {
    for (const int64_t stride : {1, 2}) {
      const std::vector<uint16_t> row(count * stride, 0x7f7f);  // the largest finite one
      std::vector<Word> words((count + 1) / 2);
      ASSERT_TRUE(kernels_->load_words(row.data(), DType::kBFloat16, stride, count, words.data()));
      for (int64_t bad = 0; bad < count; ++bad) {
        for (const int bits : {0x7f80, 0xff80, 0x7f81, 0xffff}) {
          std::vector<uint16_t> poisoned = row;
          poisoned[bad * stride] = static_cast<uint16_t>(bits);
          ASSERT_FALSE(
              kernels_->load_words(poisoned.data(), DType::kBFloat16, stride, count, words.data()))
              << bad << " of " << count;
        }
      }
    }
  }
}

// Two rows become one row of words; what is missing becomes zeros.
TEST_P(Bf16Operands, PackPanelsJoinsRows) {
  const int64_t panel = kernels_->panel_width;
  for (int64_t num_rows = 1; num_rows <= 5; ++num_rows) {
    for (const int64_t width : {1, 2, 31, 32, 33, 64, 65, 130}) {
      const int64_t row_words = (width + 1) / 2 + 1;
      std::vector<Word> rows(num_rows * row_words, Join(9, 9));
      std::vector<uint16_t> values = Halves(num_rows * width);
      for (int64_t row = 0; row < num_rows; ++row) {
        kernels_->load_words(&values[row * width], DType::kBFloat16, 1, width,
                             &rows[row * row_words]);
      }
      const auto at = [&](int64_t row, int64_t column) -> uint16_t {
        return row < num_rows && column < width ? values[row * width + column] : 0;
      };
      const int64_t depth = (num_rows + 1) / 2;
      const int64_t panel_stride = depth * panel + 3;
      const int64_t num_panels = (width + panel - 1) / panel;
      std::vector<Word> panels(num_panels * panel_stride, Join(5, 5));
      kernels_->pack_panels(rows.data(), row_words, num_rows, width, panels.data(), panel_stride);
      for (int64_t column = 0; column < num_panels * panel; ++column) {
        for (int64_t word = 0; word < depth; ++word) {
          const Word got = panels[column / panel * panel_stride + word * panel + column % panel];
          ASSERT_EQ(Low(got), at(2 * word, column)) << width << ", column " << column;
          ASSERT_EQ(High(got), at(2 * word + 1, column)) << width << ", column " << column;
        }
      }
      ASSERT_EQ(BitsOf(panels.back()), BitsOf(Join(5, 5))) << "written behind the last panel";
    }
  }
}

// Two rows become one column of words; a missing one becomes zeros.
TEST_P(Bf16Operands, PackColumnsJoinsRows) {
  for (const int64_t num_rows : {1, 2, 5, 31, 32, 33, 70}) {
    for (const int64_t width : {1, 2, 33, 64, 130}) {
      const int64_t row_words = (width + 1) / 2 + 1;
      std::vector<Word> rows(num_rows * row_words, Join(9, 9));
      std::vector<uint16_t> values = Halves(num_rows * width);
      for (int64_t row = 0; row < num_rows; ++row) {
        kernels_->load_words(&values[row * width], DType::kBFloat16, 1, width,
                             &rows[row * row_words]);
      }
      const int64_t depth = (num_rows + 1) / 2;
      const int64_t out_stride = (depth + 15) / 16 * 16 + 1;
      std::vector<Word> out(width * out_stride, Join(5, 5));
      kernels_->pack_columns(rows.data(), row_words, num_rows, width, out.data(), out_stride);
      for (int64_t value = 0; value < width; ++value) {
        for (int64_t row = 0; row < 2 * depth; ++row) {
          const Word got = out[value * out_stride + row / 2];
          const uint16_t want = row < num_rows ? values[row * width + value] : uint16_t{0};
          ASSERT_EQ(row % 2 == 0 ? Low(got) : High(got), want) << num_rows << ", value " << value;
        }
        ASSERT_EQ(BitsOf(out[(value + 1) * out_stride - 1]), BitsOf(Join(5, 5)));
      }
    }
  }
}

TEST_P(Bf16Operands, MultiplyAddsBothProductsOfAWord) {
  const int64_t panel = kernels_->panel_width;
  for (const int64_t gap : {0, 16}) {
    for (const int64_t num_rows : {1, 6, 7, 13, 16, 31, 33, 70}) {
      for (const int64_t depth : {0, 1, 5, 16, 40}) {
        std::vector<Word> a(num_rows * depth + 1);
        const int64_t b_stride = panel + gap;
        std::vector<Word> b(b_stride * depth + 1);
        for (std::vector<Word>* words : {&a, &b}) {
          for (Word& word : *words) {
            const std::vector<uint16_t> pair = Halves(2);
            word = Join(pair[0], pair[1]);
          }
        }
        std::vector<float> c(num_rows * panel, 2.0f);
        Product product;
        product.a = a.data();
        product.a_row_stride = depth;
        product.b = b.data();
        product.b_depth_stride = b_stride;
        product.c = c.data();
        product.c_row_stride = panel;
        product.num_rows = num_rows;
        product.num_columns = panel;
        product.depth = depth;
        product.accumulate = true;
        kernels_->multiply(product);
        for (int64_t row = 0; row < num_rows; ++row) {
          for (int64_t column = 0; column < panel; ++column) {
            double sum = 2.0;
            double magnitude = 2.0;
            for (int64_t k = 0; k < depth; ++k) {
              const Word x = a[row * product.a_row_stride + k];
              const Word y = b[k * b_stride + column];
              for (const auto half : {Low, High}) {
                const double term =
                    static_cast<double>(Fp32FromBf16(half(x))) * Fp32FromBf16(half(y));
                sum += term;
                magnitude += std::abs(term);
              }
            }
            const double bound = static_cast<double>(2 * depth + 1) * kUnitRoundoff * magnitude;
            ASSERT_NEAR(c[row * panel + column], sum, bound) << "depth " << depth;
          }
        }
      }
    }
  }
}

// dS in both orders, rounded to bf16, and dw from what was not rounded.
TEST_P(Bf16Operands, BackwardScores) {
  constexpr int64_t kHeads = 4;
  for (int64_t count = 0; count <= 70; ++count) {
    for (const int64_t padded : {count, count + 1, kKeysPerChunk}) {
      std::vector<float> scores(kHeads * kScoreStride, kNanF);
      std::vector<float> grad(kScoreStride, 0.0f);
      for (int64_t j = 0; j < count; ++j) {
        grad[j] = static_cast<float>(random_.Normal());
        for (int64_t head = 0; head < kHeads; ++head) {
          scores[head * kScoreStride + j] = static_cast<float>(random_.Normal());
        }
      }
      for (int64_t j = (count + 15) / 16 * 16; j < kScoreStride; ++j) grad[j] = kNanF;
      float w[kHeads];
      for (float& weight : w) weight = static_cast<float>(random_.Normal());
      float dw[kHeads] = {1.0f, -2.0f, 0.0f, 0.5f};
      std::vector<Word> by_head(kHeads * kernels_->ds_by_head_stride, kNanF);
      std::vector<Word> by_key(kHeads / 2 * kScoreStride, kNanF);
      BackwardRow row;
      row.scores = scores.data();
      row.w = w;
      row.num_heads = kHeads;
      row.logits_grad = grad.data();
      row.count = count;
      row.padded_count = padded;
      row.dw = dw;
      row.ds_by_head = by_head.data();
      row.ds_by_key = by_key.data();
      kernels_->backward_scores(row);
      for (int64_t head = 0; head < kHeads; ++head) {
        double sum = head == 0 ? 1.0 : head == 1 ? -2.0 : head == 2 ? 0.0 : 0.5;
        double magnitude = std::abs(sum);
        for (int64_t j = 0; j < padded; ++j) {
          const float s = scores[head * kScoreStride + j];
          const float exact = j < count && s > 0.0f ? grad[j] * w[head] : 0.0f;
          const Word of_head = by_head[head * kernels_->ds_by_head_stride + j / 2];
          ASSERT_EQ(j % 2 == 0 ? Low(of_head) : High(of_head), Bf16FromFp32(exact))
              << j << " of " << count;
          const Word of_key = by_key[head / 2 * kScoreStride + j];
          ASSERT_EQ(head % 2 == 0 ? Low(of_key) : High(of_key), Bf16FromFp32(exact))
              << j << " of " << count;
          if (j < count && s > 0.0f) {
            sum += static_cast<double>(grad[j]) * s;
            magnitude += std::abs(static_cast<double>(grad[j]) * s);
          }
        }
        ASSERT_NEAR(dw[head], sum, 80 * kUnitRoundoff * magnitude) << count;
      }
    }
  }
}

// AMX adds up 16 words at a time, the low and the high halves in chains of their own.
TEST(AmxProducts, AddUpAsTheManualSays) {
  const KernelTable* kernels = KernelsFor(Isa::kAmxBf16, DType::kBFloat16);
  if (kernels == nullptr) GTEST_SKIP() << "no AMX here";
  Random random(RunningTest());
  constexpr int64_t kRows = 35;
  constexpr int64_t kDepth = 41;
  const auto draw = [&] {
    // Magnitudes that differ enough for another order to show, and numbers that count as zero.
    const double value = random.Normal() * std::exp(4 * random.Normal());
    return random.Below(20) == 0 ? uint16_t{0x0001} : Bf16FromFp32(static_cast<float>(value));
  };
  const int64_t panel = kernels->panel_width;
  std::vector<Word> a(kRows * kDepth);
  std::vector<Word> b(panel * kDepth);
  for (std::vector<Word>* words : {&a, &b}) {
    for (Word& word : *words) word = Join(draw(), draw());
  }
  for (const bool accumulate : {false, true}) {
    std::vector<float> c(kRows * panel, 0.3f);
    Product product;
    product.a = a.data();
    product.a_row_stride = kDepth;
    product.b = b.data();
    product.b_depth_stride = panel;
    product.c = c.data();
    product.c_row_stride = panel;
    product.num_rows = kRows;
    product.num_columns = panel;
    product.depth = kDepth;
    product.accumulate = accumulate;
    kernels->multiply(product);
    const auto widened = [](uint16_t half) { return half == 1 ? 0.0f : Fp32FromBf16(half); };
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < panel; ++column) {
        float sum = accumulate ? 0.3f : 0.0f;
        for (int64_t step = 0; step < kDepth; step += 16) {
          float low = 0.0f;
          float high = 0.0f;
          for (int64_t k = step; k < std::min(step + 16, kDepth); ++k) {
            const Word x = a[row * kDepth + k];
            const Word y = b[k * panel + column];
            low = std::fma(widened(Low(x)), widened(Low(y)), low);
            high = std::fma(widened(High(x)), widened(High(y)), high);
          }
          sum += low + high;
        }
        ASSERT_EQ(BitsOf(c[row * panel + column]), BitsOf(sum)) << row << ", " << column;
      }
    }
  }
}

KINDLING_FOR_EVERY_ISA(Bf16Operands);

}  // namespace
}  // namespace kindling::test
