// Puts a table together. Included like tile_rows.h.
#ifndef KINDLING_SRC_KERNELS_MAKE_TABLE_H_
#define KINDLING_SRC_KERNELS_MAKE_TABLE_H_

#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/tile_products.h"
#include "kernels/tile_rows.h"

namespace kindling {

// All functions of an instruction set on one kind of operands.
template <class Operands, class Products = ProductKernels<Operands>>
constexpr KernelTable MakeTable(int64_t ds_by_head_stride) {
  using Rows = RowKernels<typename Operands::Vec>;
  return {.panel_width = Products::kPanel,
          .values_per_word = Operands::kValuesPerWord,
          .ds_by_head_stride = ds_by_head_stride,
          .packs_keys_once = Products::kPacksKeysOnce,
          .load_row = Rows::LoadRow,
          .store_row = Rows::StoreRow,
          .load_words = Operands::LoadWords,
          .pack_transposed = Products::PackTransposed,
          .pack_columns = Products::PackColumns,
          .transpose = Products::Transpose,
          .pack_panels = Products::PackPanels,
          .multiply = Products::Multiply,
          .weigh_scores = Rows::WeighScores,
          .max_sum = Rows::MaxAndSum,
          .merge = Rows::Merge,
          .sum = Rows::Sum,
          .add_exp = Rows::AddExp,
          .divide = Rows::Divide,
          .grad_row = Rows::Gradient,
          .loss_terms = Rows::LossOfChunk,
          .backward_scores = Operands::BackwardScores};
}

}  // namespace kindling

#endif  // KINDLING_SRC_KERNELS_MAKE_TABLE_H_
