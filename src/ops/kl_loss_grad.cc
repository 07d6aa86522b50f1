#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <span>

#include "base/checked_math.h"
#include "base/guard.h"
#include "kindling/operators.h"
#include "ops/launch.h"

namespace kindling {
namespace {

// One call. Phase 1 packs keys and zeroes what nobody computes; phase 2 takes units of rows; phase
// 3 rounds dk. All blocks of a sequence add to the same dk sums, chunk by chunk, in ticket order:
// that fixes the order of the sum whoever computes a block. A worker waits only for units that were
// dealt before its own, to workers that are running, so waiting ends.
class GradJob {
 public:
  GradJob(const Launch& launch, std::byte* workspace)
      : launch_(launch),
        call_(launch.call),
        indexer_(launch.indexer),
        kernels_(launch.kernels),
        workspace_(launch, workspace),
        width_(indexer_.head_dim),
        row_floats_(SaturatingRoundUp(width_, kVectorFloats)),
        padded_heads_(indexer_.padded_heads),
        query_column_words_(RoundUp(
            launch.rows_per_block * padded_heads_ / kernels_.values_per_word, kVectorFloats)),
        chunks_to_pack_(launch.tiling.num_chunks()),
        sequences_(call_.problem.num_batches()),
        units_to_sum_(launch.schedule.num_units()),
        units_(launch.schedule.num_units()),
        chunks_to_store_(launch.tiling.num_chunks()) {}

  void Work(const Worker& worker) {
    const Scratch scratch(launch_, workspace_.OfWorker(worker));
    if (worker.index == 0) workspace_.StartTurns();
    for (int64_t i = chunks_to_pack_.Next(); i >= 0; i = chunks_to_pack_.Next()) {
      PackChunk(i, scratch.key_rows);
    }
    for (int64_t b = sequences_.Next(); b >= 0; b = sequences_.Next()) ZeroUnused(b);
    if (launch_.schedule.splits_blocks()) {
      for (int64_t i = units_to_sum_.Next(); i >= 0; i = units_to_sum_.Next()) SumTeacher(i);
    }
    worker.barrier->ArriveAndWait();
    for (int64_t i = units_.Next(); i >= 0; i = units_.Next()) {
      const Unit unit = launch_.schedule.At(i);
      DoUnit(unit, scratch, Totals(launch_, workspace_.TotalsOf(unit, worker)));
    }
    worker.barrier->ArriveAndWait();
    for (int64_t i = chunks_to_store_.Next(); i >= 0; i = chunks_to_store_.Next()) {
      StoreKeyGradients(launch_.tiling.Chunk(i), scratch.dq_sums);
    }
  }

 private:
  // A worker's part of the workspace.
  struct Scratch : OperandScratch {
    Scratch(const Launch& launch, std::byte* mine)
        : OperandScratch(mine, launch.layout.indexer),
          query_columns(ArrayAt<Word>(mine, launch.layout.query_columns)),
          chunk_panels(ArrayAt<Word>(mine, launch.layout.chunk_panels)),
          ds_by_head(scores),
          ds_by_key(scores),
          dq_sums(ArrayAt<float>(mine, launch.layout.dq_sums)),
          weights(ArrayAt<float>(mine, launch.layout.pair_values)),
          dw_sums(weights + launch.rows_per_block * launch.indexer.padded_heads) {
      if (launch.kernels.values_per_word == 1) return;
      ds_by_head = ArrayAt<Word>(mine, launch.layout.ds_by_head);
      ds_by_key = ArrayAt<Word>(mine, launch.layout.ds_by_key);
    }
    Word* query_columns;
    Word* chunk_panels;
    Word* ds_by_head;
    Word* ds_by_key;
    float* dq_sums;  // of one span, like dw_sums
    float* weights;
    float* dw_sums;
  };

  // What the spans of a block add to.
  struct Totals {
    Totals(const Launch& launch, std::byte* part)
        : dq(ArrayAt<float>(part, launch.layout.dq_totals)),
          dw(ArrayAt<float>(part, launch.layout.pair_totals)),
          loss(ArrayAt<double>(part, launch.layout.row_totals)) {}
    float* dq;
    float* dw;
    double* loss;
  };

  // Without initial values, as a block seldom has as many rows as there is room for.
  struct RowState {
    int64_t position;  // in its sequence
    int64_t num_keys;  // visible
    float lse;
    float row_scale;
    float teacher_sum;
    double loss;  // of one span
  };

  // The rows of a block that are computed: first those that have gradients, then those whose
  // row_scale is 0 and of which the loss or the softmax is asked for, both ascending. Others with
  // row_scale 0 are not here.
  struct ActiveRows {
    std::span<RowState> all() { return {states, static_cast<size_t>(count)}; }
    std::span<const RowState> differentiated() const {
      return {states, static_cast<size_t>(num_differentiated)};
    }
    // Keys that any row with gradients sees.
    int64_t MostDifferentiatedKeys() const {
      return num_differentiated == 0 ? 0 : states[num_differentiated - 1].num_keys;
    }
    // Keys that any row here sees.
    int64_t MostKeys() const {
      return count == 0 ? 0 : std::max(MostDifferentiatedKeys(), states[count - 1].num_keys);
    }

    int64_t count = 0;
    int64_t num_differentiated = 0;
    RowState states[kPairsPerBlock];
    BlockRows positions;
  };

  // One chunk of keys as one block of rows meets it.
  struct Meeting {
    const RowBlock& block;
    KeyChunk chunk;
    int64_t chunk_index = 0;
    int64_t num_keys = 0;             // keys of the chunk that any row with gradients sees
    bool is_first = false;            // of its span
    bool visible_pairs_only = false;  // a masked zero could meet an infinity or a NaN
  };

  // dk sums of a chunk, [values][padded keys]: keys lie side by side, as they do in scores.
  float* KeyGradients(const KeyChunk& chunk) const {
    return ArrayAt<float>(workspace_.data(), launch_.layout.dk_sums) +
           chunk.padded_key_begin * row_floats_;
  }
  Counter* Ticket(int64_t chunk) const {
    return std::launder(ArrayAt<Counter>(
        workspace_.data(), launch_.layout.chunk_tickets + chunk * int64_t{kAlignment}));
  }
  Word* TransposedKeys(const KeyChunk& chunk) const {
    return workspace_.TransposedKeys(indexer_, launch_.layout.indexer, chunk);
  }

  // Keys of a chunk as rows of B.
  struct Panels {
    Word* words;
    int64_t stride;
  };
  // Packed once for all blocks. Requires of their use: packs_keys_once().
  Panels KeptPanels(const KeyChunk& chunk) const {
    return {ArrayAt<Word>(workspace_.data(), launch_.layout.key_panels) +
                chunk.padded_key_begin / kernels_.values_per_word * width_,
            chunk.padded_keys / kernels_.values_per_word * kernels_.panel_width};
  }
  // Packed anew by a worker for a block of rows.
  Panels ChunkPanels(const Scratch& scratch) const {
    return {scratch.chunk_panels, kKeysPerChunk / kernels_.values_per_word * kernels_.panel_width};
  }

  uint8_t* ChunkFinite(int64_t chunk) const {
    return ArrayAt<uint8_t>(workspace_.data(), launch_.layout.chunk_finite + chunk);
  }
  // Sums of p over the span of a unit, by row.
  double* UnitSums(int64_t unit) const {
    return ArrayAt<double>(workspace_.data(), launch_.layout.unit_sums) +
           unit * launch_.rows_per_block;
  }

  void PackChunk(int64_t index, Word* key_rows) {
    const KeyChunk chunk = launch_.tiling.Chunk(index);
    const Panels panels = KeptPanels(chunk);
    *ChunkFinite(index) = indexer_.PackKeys(chunk, 0, key_rows, TransposedKeys(chunk),
                                            [&](int64_t key, int64_t count) {
                                              if (indexer_.packs_keys_once())
                                                PackPanels(key_rows, key, count, panels);
                                            });
    std::memset(KeyGradients(chunk), 0, chunk.padded_keys * row_floats_ * sizeof(float));
    new (workspace_.data() + launch_.layout.chunk_tickets + index * int64_t{kAlignment}) Counter(0);
  }

  // Query tokens beyond the used length, and keys that no row sees.
  void ZeroUnused(int64_t batch) {
    const Sequence sequence = call_.problem.sequence(batch);
    const auto zero_rows = [&](const RowView& view, int64_t row_elements) {
      ZeroRows(view, batch, sequence.storage_row_begin, sequence.num_rows,
               sequence.num_allocated_rows, row_elements);
    };
    zero_rows(call_.dq, indexer_.num_heads * width_);
    zero_rows(call_.dw, indexer_.num_heads);
    zero_rows(call_.softmax_out, call_.row_stride_p);
    FillRows(call_.loss_rows, batch, sequence, sequence.num_rows, sequence.num_allocated_rows,
             0.0f);
    ZeroRows(call_.dk, batch, sequence.key_begin, sequence.num_rows > 0 ? sequence.num_keys : 0,
             sequence.num_allocated_keys, width_);
  }

  void DoUnit(const Unit& unit, const Scratch& scratch, const Totals& totals) {
    const RowBlock block = launch_.tiling.Block(unit.block);
    ActiveRows rows;
    StartRows(unit, block, rows);
    const bool finite = indexer_.LoadQueries(block, rows.positions, scratch.queries);
    PackQueries(rows.num_differentiated, scratch);
    indexer_.LoadPerHead(block, rows.positions, call_.w, scratch.weights);

    // All chunks that the block sees, whichever rows are computed: their tickets go on from it.
    const int64_t most_keys = launch_.tiling.MostVisibleKeys(block);
    const int64_t num_pairs = rows.num_differentiated * padded_heads_;
    ForSpans(unit, most_keys, [&](int64_t span, int64_t span_begin, int64_t span_end, bool last) {
      if (span_begin == span_end) std::fill_n(scratch.dq_sums, num_pairs * row_floats_, 0.0f);
      std::fill_n(scratch.dw_sums, num_pairs, 0.0f);
      for (RowState& row : rows.all()) row.loss = 0.0;
      for (int64_t begin = span_begin; begin < span_end; begin += kKeysPerChunk) {
        const int64_t index = launch_.ChunkIndex(block, begin);
        Meeting meeting{block,
                        launch_.tiling.Chunk(index),
                        index,
                        KeysInChunk(rows.MostDifferentiatedKeys(), begin),
                        begin == span_begin,
                        false};
        // dk is formed for whole vectors of keys.
        const int64_t touched_keys = std::min(RoundUp(meeting.num_keys, kVectorFloats),
                                              meeting.chunk.key_end - meeting.chunk.key_begin);
        const bool masked =
            meeting.num_keys > 0 && KeysInChunk(rows.states[0].num_keys, begin) < touched_keys;
        meeting.visible_pairs_only = masked && !(finite && *ChunkFinite(index));
        indexer_.MultiplyScores(scratch.queries, rows.count * padded_heads_,
                                TransposedKeys(meeting.chunk), KeysInChunk(rows.MostKeys(), begin),
                                scratch.scores);
        for (int64_t row = 0; row < rows.count; ++row) TurnScores(meeting, row, scratch, rows);
        AddQueryGradients(meeting, rows.differentiated(), scratch);
        AddKeyGradients(meeting, rows.differentiated(), scratch);
      }
      const Turn turn(workspace_.SpansDone(unit.block), span);
      AddSpan(span, num_pairs * row_floats_, scratch.dq_sums, totals.dq);
      AddSpan(span, num_pairs, scratch.dw_sums, totals.dw);
      for (int64_t row = 0; row < rows.count; ++row) {
        const double loss = rows.states[row].loss;
        totals.loss[row] = span == 0 ? loss : totals.loss[row] + loss;
      }
      if (last) StoreRows(block, rows, totals);
    });
  }

  // The first span begins the total.
  static void AddSpan(int64_t span, int64_t count, const float* sums, float* totals) {
    if (span == 0) {
      std::memcpy(totals, sums, count * sizeof(float));
    } else {
      for (int64_t i = 0; i < count; ++i) totals[i] += sums[i];
    }
  }

  void PackQueries(int64_t num_rows, const Scratch& scratch) const {
    kernels_.pack_columns(scratch.queries, indexer_.row_words, num_rows * padded_heads_, width_,
                          scratch.query_columns, query_column_words_);
  }

  // How many of a row's first `num_keys` keys lie in the chunk that begins at `chunk_begin`.
  static int64_t KeysInChunk(int64_t num_keys, int64_t chunk_begin) {
    return std::clamp<int64_t>(num_keys - chunk_begin, 0, kKeysPerChunk);
  }

  void StartRows(const Unit& unit, const RowBlock& block, ActiveRows& rows) const {
    const auto add = [&](int64_t row, const RowState& state) {
      rows.states[rows.count++] = state;
      rows.positions.Add(block.row_begin + row);
    };
    for (int64_t row = 0; row < block.num_rows(); ++row) {
      if (HasGradients(block, row)) add(row, StartRow(unit, block, row));
    }
    rows.num_differentiated = rows.count;
    if (!call_.loss_rows && !call_.softmax_out) return;
    for (int64_t row = 0; row < block.num_rows(); ++row) {
      if (!HasGradients(block, row)) add(row, StartRow(unit, block, row));
    }
  }

  // Whether anything of a row goes into gradients. A row that sees no key has zeros for them, and
  // its row_scale is not read.
  bool HasGradients(const RowBlock& block, int64_t row) const {
    return !call_.row_scale || launch_.VisibleKeys(block, row) == 0 ||
           ScalarOfRow(call_.row_scale, block, row) != 0.0f;
  }

  RowState StartRow(const Unit& unit, const RowBlock& block, int64_t row) const {
    RowState state{};
    state.position = block.row_begin + row;
    state.num_keys = launch_.VisibleKeys(block, row);
    state.row_scale = 1.0f;
    if (state.num_keys == 0) return state;  // its lse and p are not read
    state.lse = ScalarOfRow(call_.lse, block, row);
    if (call_.row_scale) state.row_scale = ScalarOfRow(call_.row_scale, block, row);
    if (state.row_scale == 0.0f) return state;
    double sum = 0.0;
    for (int64_t begin = 0; begin < state.num_keys; begin += kKeysPerSpan) {
      const int64_t span = begin / kKeysPerSpan;
      sum += launch_.schedule.splits_blocks()
                 ? UnitSums(launch_.schedule.FirstUnit(unit.block) + span)[row]
                 : TeacherSum(block, row, begin, std::min(begin + kKeysPerSpan, state.num_keys));
    }
    state.teacher_sum = static_cast<float>(sum);
    return state;
  }

  // Sum of p over keys [begin, end) of a row, chunk by chunk.
  double TeacherSum(const RowBlock& block, int64_t row, int64_t begin, int64_t end) const {
    double sum = 0.0;
    for (; begin < end; begin += kKeysPerChunk) {
      float teacher[kScoreStride];
      const int64_t count = std::min(kKeysPerChunk, end - begin);
      LoadTeacher(launch_, block, row, begin, count, teacher);
      sum += kernels_.sum(teacher, count);
    }
    return sum;
  }

  void SumTeacher(int64_t index) const {
    const Unit unit = launch_.schedule.At(index);
    const RowBlock block = launch_.tiling.Block(unit.block);
    const int64_t begin = unit.span_begin * kKeysPerSpan;
    for (int64_t row = 0; row < block.num_rows(); ++row) {
      if (!HasGradients(block, row)) continue;
      const int64_t end = std::min(begin + kKeysPerSpan, launch_.VisibleKeys(block, row));
      UnitSums(index)[row] = TeacherSum(block, row, begin, end);
    }
  }

  static float ScalarOfRow(const RowView& view, const RowBlock& block, int64_t row) {
    return *static_cast<const float*>(view.At(RowOffset(view, block, block.row_begin + row)));
  }

  // Turns a row's scores into dS and adds to its dw, where it has gradients; writes its part of
  // softmax_out. `row` counts active rows.
  void TurnScores(const Meeting& meeting, int64_t row, const Scratch& scratch, ActiveRows& rows) {
    RowState& state = rows.states[row];
    const int64_t first_pair = row * padded_heads_;
    float logits_grad[kScoreStride];
    BackwardRow backward;
    backward.scores = scratch.scores + first_pair * kScoreStride;
    backward.w = scratch.weights + first_pair;
    backward.num_heads = padded_heads_;
    backward.logits_grad = logits_grad;
    backward.count = KeysInChunk(state.num_keys, meeting.chunk.key_begin);
    if (backward.count > 0) GradientOfLogits(meeting, backward, logits_grad, state);
    if (row >= rows.num_differentiated) return;
    backward.padded_count = meeting.num_keys;
    backward.dw = scratch.dw_sums + first_pair;
    backward.ds_by_head = scratch.ds_by_head + first_pair * kernels_.ds_by_head_stride;
    backward.ds_by_key = scratch.ds_by_key + first_pair / kernels_.values_per_word * kScoreStride;
    kernels_.backward_scores(backward);
  }

  // y and dI of one row in one chunk, and what they add to the loss and to softmax_out.
  void GradientOfLogits(const Meeting& meeting, const BackwardRow& backward, float* logits_grad,
                        RowState& state) {
    const int64_t count = backward.count;
    const int64_t key_begin = meeting.chunk.key_begin;
    float logits[kScoreStride];
    float teacher[kScoreStride];
    float softmax[kScoreStride];
    LoadTeacher(launch_, meeting.block, state.position - meeting.block.row_begin, key_begin, count,
                teacher);
    // Without the heads that fill words: 0 times an infinite key would be a NaN.
    kernels_.weigh_scores(backward.scores, backward.w, indexer_.num_heads, count, logits);
    GradRow grad;
    grad.logits = logits;
    grad.teacher = teacher;
    grad.count = count;
    grad.lse = state.lse;
    grad.teacher_sum = state.teacher_sum;
    grad.row_scale = state.row_scale;
    grad.softmax = softmax;
    grad.logits_grad = logits_grad;
    kernels_.grad_row(grad);
    if (call_.softmax_out) {
      const int64_t offset =
          RowOffset(call_.softmax_out, meeting.block, state.position) + key_begin;
      std::memcpy(call_.softmax_out.OutAt(offset), softmax, count * sizeof(float));
    }
    if (call_.loss_rows) {
      state.loss += kernels_.loss_terms(logits, teacher, count, -state.lse).relative_entropy;
    }
  }

  // dq += dS x K over the keys of the chunk.
  void AddQueryGradients(const Meeting& meeting, std::span<const RowState> rows,
                         const Scratch& scratch) {
    if (rows.empty()) return;
    const auto num_rows = static_cast<int64_t>(rows.size());
    const int64_t values_per_word = kernels_.values_per_word;
    const bool kept = indexer_.packs_keys_once() && !meeting.visible_pairs_only;
    const Panels panels = kept ? KeptPanels(meeting.chunk) : ChunkPanels(scratch);
    if (!kept) PackKeyPanels(meeting, scratch.key_rows, panels);
    Product product;
    product.a = scratch.ds_by_head;
    product.a_row_stride = kernels_.ds_by_head_stride;
    product.b = panels.words;
    product.b_panel_stride = panels.stride;
    product.b_depth_stride = kernels_.panel_width;
    product.c = scratch.dq_sums;
    product.c_row_stride = row_floats_;
    product.num_rows = num_rows * padded_heads_;
    product.num_columns = width_;
    product.depth = CeilDiv(meeting.num_keys, values_per_word);
    product.accumulate = !meeting.is_first;
    if (!meeting.visible_pairs_only) {
      kernels_.multiply(product);
      return;
    }
    // Rows that see most keys first: what is cut off for one is not used by the next.
    product.num_rows = padded_heads_;
    for (int64_t row = num_rows - 1; row >= 0; --row) {
      const int64_t count = KeysInChunk(rows[row].num_keys, meeting.chunk.key_begin);
      if (count % values_per_word != 0) CutKeyPanels(count, panels);
      product.a = scratch.ds_by_head + row * padded_heads_ * kernels_.ds_by_head_stride;
      product.c = scratch.dq_sums + row * padded_heads_ * row_floats_;
      product.depth = CeilDiv(count, values_per_word);
      kernels_.multiply(product);
    }
  }

  // The chunk's keys once more, as rows of B. Where they are read anew for every block of rows,
  // that costs a percent of the block's products, and keeping them a third of the workspace.
  void PackKeyPanels(const Meeting& meeting, Word* key_rows, const Panels& panels) const {
    const int64_t step = kernels_.panel_width;
    for (int64_t key = 0; key < meeting.num_keys; key += step) {
      const int64_t count = std::min(step, meeting.num_keys - key);
      indexer_.LoadKeys(meeting.chunk, 0, meeting.chunk.key_begin + key, count, key_rows);
      PackPanels(key_rows, key, count, panels);
    }
  }

  // Keys [key, key + count) of a chunk, loaded as rows of words.
  void PackPanels(const Word* key_rows, int64_t key, int64_t count, const Panels& panels) const {
    kernels_.pack_panels(key_rows, indexer_.row_words, count, width_,
                         panels.words + key / kernels_.values_per_word * kernels_.panel_width,
                         panels.stride);
  }

  // Zeroes key `key`, the second of its word.
  void CutKeyPanels(int64_t key, const Panels& panels) const {
    for (int64_t column = 0; column < width_; column += kernels_.panel_width) {
      Word* words = panels.words + column / kernels_.panel_width * panels.stride +
                    key / 2 * kernels_.panel_width;
      for (int64_t i = 0; i < kernels_.panel_width; ++i) {
        words[i] = std::bit_cast<Word>(std::bit_cast<uint32_t>(words[i]) & 0xffffu);
      }
    }
  }

  // dk += dS^T x Q over the rows of the block, when it is this block's turn: as Q^T x dS, whose
  // operands are packed as the other products have them.
  void AddKeyGradients(const Meeting& meeting, std::span<const RowState> rows,
                       const Scratch& scratch) {
    const auto num_rows = static_cast<int64_t>(rows.size());
    Product product;
    product.a = scratch.query_columns;
    product.a_row_stride = query_column_words_;
    product.b = scratch.ds_by_key;
    product.b_panel_stride = kernels_.panel_width;
    product.b_depth_stride = kScoreStride;
    product.c = KeyGradients(meeting.chunk);
    product.c_row_stride = meeting.chunk.padded_keys;
    product.num_rows = width_;
    product.num_columns = meeting.num_keys;
    product.depth = num_rows * padded_heads_ / kernels_.values_per_word;
    product.accumulate = true;
    const Turn turn(Ticket(meeting.chunk_index), meeting.block.ticket);
    if (meeting.num_keys == 0) return;
    if (meeting.visible_pairs_only) {
      AddVisibleKeyGradients(meeting, rows, scratch, product);
    } else {
      kernels_.multiply(product);
    }
  }

  // The same, with queries of rows that do not see a key replaced by zeros. `whole` is the product
  // over all keys.
  void AddVisibleKeyGradients(const Meeting& meeting, std::span<const RowState> rows,
                              const Scratch& scratch, const Product& whole) {
    const int64_t step = std::min(kVectorFloats, kernels_.panel_width);
    const int64_t row_depth = padded_heads_ / kernels_.values_per_word;
    Product part = whole;
    part.c = scratch.key_rows;
    part.c_row_stride = step;
    part.num_columns = step;
    int64_t key = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      // Keys from `key` on that this row sees are seen by it and the later ones.
      const int64_t count = KeysInChunk(rows[row].num_keys, meeting.chunk.key_begin);
      while (key < count) {
        const int64_t first = key / step * step;
        const int64_t end = std::min(first + step, count);
        for (int64_t value = 0; value < width_; ++value) {
          std::copy_n(whole.c + value * whole.c_row_stride + first, step, part.c + value * step);
        }
        part.b = whole.b + first;
        kernels_.multiply(part);
        for (int64_t value = 0; value < width_; ++value) {
          std::copy(part.c + value * step + key - first, part.c + value * step + end - first,
                    whole.c + value * whole.c_row_stride + key);
        }
        key = end;
      }
      for (int64_t value = 0; value < width_; ++value) {
        std::fill_n(scratch.query_columns + value * query_column_words_ +
                        static_cast<int64_t>(row) * row_depth,
                    row_depth, 0.0f);
      }
    }
    PackQueries(static_cast<int64_t>(rows.size()), scratch);
  }

  void StoreRows(const RowBlock& block, const ActiveRows& rows, const Totals& totals) {
    int64_t next = 0;  // of the rows with gradients
    for (int64_t position = block.row_begin; position < block.row_end; ++position) {
      if (next < rows.num_differentiated && rows.states[next].position == position) {
        StoreGradients(block, position, next++, totals);
        continue;
      }
      const auto zero = [&](const RowView& view, int64_t row_elements) {
        ZeroRows(view, block.batch, block.sequence.storage_row_begin, position, position + 1,
                 row_elements);
      };
      zero(call_.dq, indexer_.num_heads * width_);
      zero(call_.dw, indexer_.num_heads);
    }
    for (int64_t row = 0; row < rows.count; ++row) {
      const RowState& state = rows.states[row];
      if (call_.softmax_out) {
        const int64_t offset = RowOffset(call_.softmax_out, block, state.position) + state.num_keys;
        std::memset(call_.softmax_out.OutAt(offset), 0,
                    (call_.row_stride_p - state.num_keys) * sizeof(float));
      }
      FillRows(call_.loss_rows, block.batch, block.sequence, state.position, state.position + 1,
               static_cast<float>(totals.loss[row]));
    }
  }

  // `row` counts active rows.
  void StoreGradients(const RowBlock& block, int64_t position, int64_t row, const Totals& totals) {
    const int64_t first_pair = row * padded_heads_;
    const int64_t dq_offset = RowOffset(call_.dq, block, position);
    for (int64_t head = 0; head < indexer_.num_heads; ++head) {
      kernels_.store_row(totals.dq + (first_pair + head) * row_floats_, width_, call_.dq.dtype,
                         call_.dq.OutAt(dq_offset + head * width_));
    }
    std::memcpy(call_.dw.OutAt(RowOffset(call_.dw, block, position)), totals.dw + first_pair,
                indexer_.num_heads * sizeof(float));
  }

  // `rows` has room for kVectorFloats rows.
  void StoreKeyGradients(const KeyChunk& chunk, float* rows) {
    const int64_t num_keys = chunk.key_end - chunk.key_begin;
    for (int64_t key = 0; key < num_keys; key += kVectorFloats) {
      const int64_t count = std::min(kVectorFloats, num_keys - key);
      kernels_.transpose(KeyGradients(chunk) + key, chunk.padded_keys, width_, count, rows,
                         row_floats_);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t offset =
            call_.dk.RowOffset(chunk.batch, chunk.sequence.key_begin, chunk.key_begin + key + i);
        kernels_.store_row(rows + i * row_floats_, width_, call_.dk.dtype, call_.dk.OutAt(offset));
      }
    }
  }

  const Launch& launch_;
  const OperatorCall& call_;
  const PackedOperands& indexer_;
  const KernelTable& kernels_;
  const Workspace workspace_;
  const int64_t width_;
  const int64_t row_floats_;
  const int64_t padded_heads_;
  const int64_t query_column_words_;
  Dealer chunks_to_pack_, sequences_, units_to_sum_, units_, chunks_to_store_;
};

constexpr OperatorLayout kLayout = {LayOutKLLossGrad, Heads::kWholeWords};

Result<Launch> Prepare(const KLLossGradArgs& args, int64_t num_threads) {
  return PrepareLaunch(CheckKLLossGrad(args, Precision::kNative), args.metadata, num_threads,
                       kLayout);
}

}  // namespace

Status KLLossGrad(const KLLossGradArgs& args, const RunOptions& options) {
  return GuardMemory([&]() -> Status {
    return RunJob(
        Prepare(args, options.num_threads), options,
        [](const Launch& launch, std::byte* workspace) { return GradJob(launch, workspace); });
  });
}

Result<size_t> KLLossGradWorkspaceBytes(const KLLossGradArgs& args, int64_t num_threads) {
  return GuardMemory(
      [&]() -> Result<size_t> { return WorkspaceBytesOf(Prepare(args, num_threads)); });
}

int64_t KLLossGradWorkspaceLimit(const CallShape& shape, int64_t num_threads) {
  return WorkspaceLimit(shape, num_threads, kLayout, &WorkspaceDims::indexer);
}

double TotalLoss(const float* loss_rows, int64_t num_rows) {
  double total = 0.0;
  for (int64_t row = 0; row < num_rows; ++row) total += loss_rows[row];
  return total;
}

}  // namespace kindling
