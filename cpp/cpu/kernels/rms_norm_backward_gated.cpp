// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_backward_rows.hpp"
#include "cpu/silu.hpp"
#include "cpu/thread_memory.hpp"

// The gradients of gated rows, one row at a time, block by block at any strides: first the sum,
// then the gradients. The weight is always prepared, which saves instantiations.
namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Columns of silu(gate) and its slope that are buffered between the passes: they cost more than all
// the rest. Wider rows compute them twice.
template <class T>
constexpr std::int64_t kBufferedCols = (32 << 10) / sizeof(typename Lanes<T>::A);

// A block of a row.
template <class T>
struct GatedBlock {
  using A = typename Lanes<T>::A;
  const T* dy;
  const T* x;
  const A* open;   // silu(gate), zero-padded
  const A* slope;  // its slope
  const A* weight;
  A* weight_sum;  // null: not wanted
  T* dx;          // likewise
  T* dgate;       // likewise
  A rstd, mean_gh;
  bool round_before_weight;
};

// A later row is prefetched for one quarter while summing and three quarters while writing, as in
// rms_norm_backward.
constexpr int kQuartersWhileSumming = 1, kQuartersWhileWriting = 3;

template <class T>
[[gnu::noinline]] void buffer_gate(const T* gate, std::int64_t count, typename Lanes<T>::A* open,
                                   typename Lanes<T>::A* slope, const LaterRow<T, 3>& later) {
  using A = typename Lanes<T>::A;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  for (std::int64_t col = 0; col < count; col += kStep) {
    const std::int64_t some = count - col < kStep ? count - col : kStep;
    later.prefetch_part(col, col + some);
    const auto z = read_some(gate + col, some);
    const auto first = silu_with_slope<A>(z.first), second = silu_with_slope<A>(z.second);
    store(open + col, first.value);
    store(open + col + kStep / 2, second.value);
    store(slope + col, first.slope);
    store(slope + col + kStep / 2, second.slope);
  }
}

// A step as both passes need it: h is the normalised row, `arriving` the gradient that reaches the
// norm, g the gradient of h.
template <class T, bool kNormFirst>
struct Step {
  using V = typename Lanes<T>::V;
  Pair<V> dy, x, open, factor, h, arriving, g;

  MEMBOUND_ALWAYS_INLINE Step(const GatedBlock<T>& block, std::int64_t col, std::int64_t count)
      : dy(read_some(block.dy + col, count)),
        x(read_some(block.x + col, count)),
        open(load_pair<V>(block.open + col)),
        factor(load_pair<V>(block.weight + col)) {
    const V rstd = V{} + block.rstd;
    h = product<V>(kNormFirst ? x : product(x, open), {rstd, rstd});
    if (count != Lanes<T>::kStep) h = first_of_step<T>(h, count);
    arriving = kNormFirst ? product(dy, open) : dy;
    g = product(arriving, factor);
  }
};

// Sums g * h along the row and adds dweight's terms to weight_sum.
template <class T, bool kNormFirst>
struct GatedTerms {
  static constexpr int kSums = 1, kProducts = 1;
  using V = typename Lanes<T>::V;
  const GatedBlock<T>& block;

  MEMBOUND_ALWAYS_INLINE void step(std::int64_t col, std::int64_t count,
                                   Factors<V>* factors) const {
    const Step<T, kNormFirst> at(block, col, count);
    *factors = {at.g, at.h};
    if (block.weight_sum == nullptr) return;
    const Pair<V> seen = rounded<T>(at.h, block.round_before_weight);
    const Pair<V> sum = load_pair<V>(block.weight_sum + col);
    store_pair(block.weight_sum + col,
               Pair<V>{multiply_add(at.arriving.first, seen.first, sum.first),
                       multiply_add(at.arriving.second, seen.second, sum.second)});
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* factors) const {
    step(col, Lanes<T>::kStep, factors);
  }
  [[gnu::noinline]] void partial(std::int64_t col, std::int64_t count, Factors<V>* factors) const {
    step(col, count, factors);
  }
};

template <bool kNormFirst, class T>
[[gnu::noinline]] typename Lanes<T>::A sum_pass(const GatedBlock<T>& all, std::int64_t count) {
  const GatedBlock<T> block = all;  // a copy that no store can alias
  typename Lanes<T>::A sum;
  sums_of_block<T>(GatedTerms<T, kNormFirst>{block}, 0, count, &sum);
  return sum;
}

template <class T>
struct GatedGradients {
  Pair<typename Lanes<T>::V> x, gate;
};

// The gradient of the normalised input is rstd * (g - h * mean(g * h)).
template <bool kNormFirst, class T>
MEMBOUND_ALWAYS_INLINE GatedGradients<T> gradients_of(const GatedBlock<T>& block, std::int64_t col,
                                                      std::int64_t count) {
  using V = typename Lanes<T>::V;
  const Step<T, kNormFirst> at(block, col, count);
  const Pair<V> slope = load_pair<V>(block.slope + col);
  const V minus_mean = V{} - block.mean_gh, rstd = V{} + block.rstd;
  const Pair<V> rest{multiply_add(at.h.first, minus_mean, at.g.first),
                     multiply_add(at.h.second, minus_mean, at.g.second)};
  const Pair<V> inner = product<V>(rest, {rstd, rstd});
  if constexpr (!kNormFirst) {
    // x * slope is about as large as x * silu(gate): with rstd in the other factor it stays finite.
    return {product(inner, at.open), product(inner, product(at.x, slope))};
  } else {
    // What the forward multiplied by silu(gate).
    const bool rounds = block.round_before_weight;
    const Pair<V> norm = rounded<T>(product(rounded<T>(at.h, rounds), at.factor), rounds);
    return {inner, product(product(at.dy, slope), norm)};
  }
}

template <bool kNormFirst, bool kNonTemporal, class T>
[[gnu::noinline]] void write_pass(const GatedBlock<T>& all, std::int64_t count,
                                  const LaterRow<T, 3>& later) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const GatedBlock<T> block = all;
  std::int64_t col = 0;
  for (; col + kStep <= count; col += kStep) {
    later.prefetch_part(col, col + kStep);
    const auto gradients = gradients_of<kNormFirst>(block, col, kStep);
    if (block.dx != nullptr) write_step<kNonTemporal>(block.dx + col, gradients.x);
    if (block.dgate != nullptr) write_step<kNonTemporal>(block.dgate + col, gradients.gate);
  }
  if (col == count) return;
  const auto gradients = gradients_of<kNormFirst>(block, col, count - col);
  if (block.dx != nullptr) write_partial(block.dx + col, gradients.x, count - col);
  if (block.dgate != nullptr) write_partial(block.dgate + col, gradients.gate, count - col);
}

template <class T, bool kNormFirst>
struct GatedRow {
  using A = typename Lanes<T>::A;
  const RmsNormBackwardRows& rows;
  const std::int64_t row;
  const bool non_temporal;
  const T* const dy = row_of<T>(rows.dy, rows.dy_row_stride, row);
  const T* const x = row_of<T>(rows.x, rows.x_row_stride, row);
  const T* const gate = row_of<T>(rows.gate, rows.gate_row_stride, row);
  T* const dx = const_cast<T*>(row_of<T>(rows.dx, rows.dx_row_stride, row));
  T* const dgate = const_cast<T*>(row_of<T>(rows.dgate, rows.dgate_row_stride, row));
  const A rstd = plain_nan(*row_of<A>(rows.rstd, rows.rstd_row_stride, row));
  T dy_block[kBlock<T>], x_block[kBlock<T>], gate_block[kBlock<T>];
  T dx_block[kBlock<T>], dgate_block[kBlock<T>];
  std::int64_t buffered_cols = 0;  // of this row, from the first column on
  A* const open = thread_array<A, 2 * kBufferedCols<T>>();
  A* const slope = open + kBufferedCols<T>;

  // A constructor, because aggregate initialisation would clear the blocks.
  GatedRow(const RmsNormBackwardRows& all, std::int64_t number, bool bypass)
      : rows(all), row(number), non_temporal(bypass) {}

  LaterRow<T, 3> later(std::int64_t from, int quarters) const {
    const bool prefetches = rows.prefetch_ahead && row + 1 < rows.rows + rows.following_rows &&
                            rows.dy_col_stride == 1 && rows.x_col_stride == 1 &&
                            rows.gate_col_stride == 1;
    if (!prefetches) return {};
    return {{dy + rows.dy_row_stride, x + rows.x_row_stride, gate + rows.gate_row_stride},
            from,
            quarters};
  }

  // The offset of silu(gate) and its slope in both buffers; fills them on demand.
  std::int64_t buffered_at(std::int64_t first, std::int64_t count) {
    const bool fits = rows.cols <= kBufferedCols<T>;
    const std::int64_t at = fits ? first : 0;
    if (fits && first < buffered_cols) return at;
    buffer_gate(gather(gate, rows.gate_col_stride, first, count, gate_block), count, open + at,
                slope + at, later(first, kQuartersWhileSumming));
    buffered_cols = first + count;
    return at;
  }

  GatedBlock<T> read(std::int64_t first, std::int64_t count, A mean_gh) {
    const std::int64_t at = buffered_at(first, count);
    GatedBlock<T> block;
    block.dy = gather(dy, rows.dy_col_stride, first, count, dy_block);
    block.x = gather(x, rows.x_col_stride, first, count, x_block);
    block.open = open + at;
    block.slope = slope + at;
    block.weight = static_cast<const A*>(rows.weight) + first;
    block.weight_sum =
        rows.weight_sum != nullptr ? static_cast<A*>(rows.weight_sum) + first : nullptr;
    block.dx = dx == nullptr ? nullptr : rows.dx_col_stride == 1 ? dx + first : dx_block;
    block.dgate = dgate == nullptr             ? nullptr
                  : rows.dgate_col_stride == 1 ? dgate + first
                                               : dgate_block;
    block.rstd = rstd;
    block.mean_gh = mean_gh;
    block.round_before_weight = rows.round_before_weight;
    return block;
  }

  void run() {
    BlockSum<A> total;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      total.add(sum_pass<kNormFirst>(read(first, count, 0), count));
    });
    if (dx == nullptr && dgate == nullptr) return;
    const A mean_gh = total.value() / static_cast<A>(rows.cols);
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const GatedBlock<T> block = read(first, count, mean_gh);
      const auto upcoming = later(rows.cols / 3 + first, kQuartersWhileWriting);
      non_temporal ? write_pass<kNormFirst, true>(block, count, upcoming)
                   : write_pass<kNormFirst, false>(block, count, upcoming);
      if (block.dx == dx_block) scatter(dx, rows.dx_col_stride, first, count, dx_block);
      if (block.dgate == dgate_block)
        scatter(dgate, rows.dgate_col_stride, first, count, dgate_block);
    });
  }
};

template <class T, bool kNormFirst>
void run(const RmsNormBackwardRows& rows) {
  const bool non_temporal = rows.bypass_cache && rows.dx_col_stride == 1 &&
                            rows.dgate_col_stride == 1 &&
                            are_line_aligned<T>(rows.dx, rows.dx_row_stride) &&
                            are_line_aligned<T>(rows.dgate, rows.dgate_row_stride);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    GatedRow<T, kNormFirst>(rows, row, non_temporal).run();
  }
  if (non_temporal) stream_fence();
}

template <class T>
void run_ordered(const RmsNormBackwardRows& rows) {
  rows.norm_before_gate ? run<T, true>(rows) : run<T, false>(rows);
}

}  // namespace

void rms_norm_backward_gated(const RmsNormBackwardRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_ordered<Float16>(rows);
    case DType::kBFloat16: return run_ordered<BFloat16>(rows);
    case DType::kFloat32: return run_ordered<float>(rows);
    default: return run_ordered<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
