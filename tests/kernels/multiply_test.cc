// The matrix product against plain loops, and each element's independence of the tile it falls in.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/kernel_test.h"

namespace kindling::test {
namespace {

enum class Order { kDensePanels, kSideBySide };

// A, B and C of one product, with gaps between the rows of A and C and between the panels of B.
// Panels lie behind each other or, as dS does, side by side.
struct Operands {
  Operands(const KernelTable& kernels, Random& random, Order order, int64_t num_rows,
           int64_t num_panels, int64_t depth)
      : panel_width(kernels.panel_width),
        a((num_rows + 3) * (depth + 3)),
        b((depth + 1) * (num_panels * panel_width + 7)),
        c((num_rows + 1) * (num_panels * panel_width + 5)) {
    for (std::vector<float>* matrix : {&a, &b, &c}) {
      for (float& x : *matrix) x = static_cast<float>(random.Normal());
    }
    product.a = a.data();
    product.a_row_stride = depth + 3;
    product.b = b.data();
    const bool dense = order == Order::kDensePanels;
    product.b_panel_stride = dense ? depth * panel_width + 7 : panel_width;
    product.b_depth_stride = dense ? panel_width : num_panels * panel_width + 7;
    product.c_row_stride = num_panels * panel_width + 5;
    product.num_rows = num_rows;
    product.num_columns = num_panels * panel_width;
    product.depth = depth;
  }

  float A(int64_t row, int64_t k) const { return a[row * product.a_row_stride + k]; }
  float B(int64_t k, int64_t column) const {
    return b[column / panel_width * product.b_panel_stride + k * product.b_depth_stride +
             column % panel_width];
  }

  int64_t panel_width;
  std::vector<float> a, b, c;
  Product product;
};

class Multiply : public KernelTest {
 protected:
  // C after the product; everything outside of it must be what it was.
  std::vector<float> Run(const Operands& operands, bool accumulate) const {
    std::vector<float> c = operands.c;
    Product product = operands.product;
    product.c = c.data();
    product.accumulate = accumulate;
    kernels_.multiply(product);
    return c;
  }

  void ExpectRight(const Operands& operands, bool accumulate) const {
    const Product& product = operands.product;
    const std::vector<float> c = Run(operands, accumulate);
    for (int64_t at = 0; at < static_cast<int64_t>(c.size()); ++at) {
      const int64_t row = at / product.c_row_stride;
      const int64_t column = at % product.c_row_stride;
      if (row >= product.num_rows || column >= product.num_columns) {
        ASSERT_EQ(c[at], operands.c[at]) << "outside of C";
        continue;
      }
      double sum = 0.0;
      double magnitude = 0.0;
      for (int64_t k = 0; k < product.depth; ++k) {
        const double term = static_cast<double>(operands.A(row, k)) * operands.B(k, column);
        sum += term;
        magnitude += std::abs(term);
      }
      double bound = static_cast<double>(product.depth) * kUnitRoundoff * 1.0001 * magnitude;
      if (accumulate) {
        sum += operands.c[at];
        bound += kUnitRoundoff * (std::abs(sum) + bound);
      }
      ASSERT_NEAR(c[at], sum, bound) << "row " << row << ", column " << column;
    }
  }
};

constexpr int64_t kMaxRows = 13;  // two tiles of 6 and one row
constexpr Order kOrders[] = {Order::kDensePanels, Order::kSideBySide};

TEST_P(Multiply, EqualsPlainLoops) {
  for (const Order order : kOrders) {
    for (int64_t num_rows = 0; num_rows <= kMaxRows; ++num_rows) {
      for (const int64_t num_panels : {1, 2, 3}) {
        for (const int64_t depth : {0, 1, 2, 5, 16, 130}) {
          const Operands operands(kernels_, random_, order, num_rows, num_panels, depth);
          ExpectRight(operands, false);
          ExpectRight(operands, true);
        }
      }
    }
  }
}

// Whole vectors are written, and no more: as many columns as there are, rounded up to a vector, and
// those as in the product of whole panels.
TEST_P(Multiply, ColumnsMayEndWithinAPanel) {
  for (const Order order : kOrders) {
    const Operands operands(kernels_, random_, order, kMaxRows, 2, 11);
    const std::vector<float> whole = Run(operands, true);
    for (int64_t columns = 0; columns <= 2 * operands.panel_width; ++columns) {
      Operands part = operands;
      part.product.num_columns = columns;
      const std::vector<float> c = Run(part, true);
      for (int64_t at = 0; at < static_cast<int64_t>(c.size()); ++at) {
        const int64_t column = at % part.product.c_row_stride;
        if (at / part.product.c_row_stride < kMaxRows && column < columns) {
          ASSERT_EQ(BitsOf(c[at]), BitsOf(whole[at])) << columns;
        } else if (column >= (columns + 15) / 16 * 16) {
          ASSERT_EQ(BitsOf(c[at]), BitsOf(operands.c[at])) << columns << ": written behind";
        }
      }
    }
  }
}

// The same row in any tile, the same column in any panel: the same bits.
TEST_P(Multiply, AnElementDoesNotDependOnItsTile) {
  for (const Order order : kOrders) {
    const Operands operands(kernels_, random_, order, kMaxRows, 3, 37);
    for (const bool accumulate : {false, true}) {
      const std::vector<float> whole = Run(operands, accumulate);
      for (int64_t begin = 0; begin < kMaxRows; ++begin) {
        for (int64_t end = begin + 1; end <= kMaxRows; ++end) {
          Operands part = operands;
          part.product.a = part.a.data() + begin * part.product.a_row_stride;
          part.product.num_rows = end - begin;
          part.product.b = part.b.data() + part.product.b_panel_stride;  // the second panel alone
          part.product.num_columns = operands.panel_width;
          std::vector<float> c = part.c;
          part.product.c = c.data() + begin * part.product.c_row_stride + operands.panel_width;
          part.product.accumulate = accumulate;
          kernels_.multiply(part.product);
          for (int64_t row = begin; row < end; ++row) {
            for (int64_t j = 0; j < operands.panel_width; ++j) {
              const int64_t at = row * part.product.c_row_stride + operands.panel_width + j;
              ASSERT_EQ(BitsOf(c[at]), BitsOf(whole[at]))
                  << "rows " << begin << ".." << end << ", row " << row;
            }
          }
        }
      }
    }
  }
}

// Terms of +-0 change no bit, and may be left out at the end: what the operators' masks rest on.
TEST_P(Multiply, ZerosChangeNothing) {
  Operands operands(kernels_, random_, Order::kDensePanels, kMaxRows, 2, 40);
  for (int64_t row = 0; row < kMaxRows; ++row) {
    for (int64_t k = 0; k < 40; ++k) {
      if (k < 5 || k >= 30) operands.a[row * operands.product.a_row_stride + k] = 0.0f;
    }
  }
  const std::vector<float> want = Run(operands, true);
  for (int64_t k = 0; k < 5; ++k) {
    for (int64_t i = 0; i < operands.panel_width; ++i)
      operands.b[k * operands.panel_width + i] = -0.0f;
  }
  operands.product.depth = 30;
  const std::vector<float> got = Run(operands, true);
  for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(BitsOf(got[i]), BitsOf(want[i]));
}

TEST_P(Multiply, ANanStaysInItsRowAndColumn) {
  for (const Order order : kOrders) {
    Operands operands(kernels_, random_, order, kMaxRows, 2, 9);
    const std::vector<float> clean = Run(operands, false);
    operands.a[8 * operands.product.a_row_stride + 4] = kNanF;
    operands.b[3 * operands.product.b_depth_stride + 2] = kInfF;  // k = 3, column 2
    const std::vector<float> got = Run(operands, false);
    for (int64_t row = 0; row < kMaxRows; ++row) {
      for (int64_t column = 0; column < 2 * operands.panel_width; ++column) {
        const int64_t at = row * operands.product.c_row_stride + column;
        if (row == 8 || column == 2) {
          ASSERT_FALSE(std::isfinite(got[at]));
        } else {
          ASSERT_EQ(BitsOf(got[at]), BitsOf(clean[at]));
        }
      }
    }
  }
}

KINDLING_FOR_EVERY_ISA(Multiply);

}  // namespace
}  // namespace kindling::test
