// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_row.hpp"
#include "cpu/silu.hpp"

// Gated rows, block by block at any strides: first the sum, then the results. There is one code
// path, and the weight is always prepared, which saves instantiations.
namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Columns of x * silu(gate) that are buffered between the passes: silu costs more than all the
// rest. Wider rows compute it twice.
template <class T>
constexpr std::int64_t kBufferedCols = (32 << 10) / sizeof(typename Lanes<T>::A);

// A buffered row, zero-padded.
template <class T>
struct BufferedRow {
  using V = typename Lanes<T>::V;
  const typename Lanes<T>::A* values;

  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    return load_pair<V>(values + col);
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t) const {
    return whole(col);
  }
};

// The input of the norm.
template <class T, bool kNormFirst>
struct InputOf {
  using Row = InputRow<T, false>;
};
template <class T>
struct InputOf<T, false> {
  using Row = BufferedRow<T>;
};

// Half of a later row is prefetched while summing, half while writing.
constexpr int kPrefetchedQuarters = 2;

template <class T>
[[gnu::noinline]] void buffer_products(const T* x, const T* gate, std::int64_t count,
                                       typename Lanes<T>::A* buffered,
                                       const LaterRow<T, 2>& later) {
  using A = typename Lanes<T>::A;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  std::int64_t col = 0;
  for (; col + kStep <= count; col += kStep) {
    later.prefetch_part(col, col + kStep);
    store_pair(buffered + col,
               product(Lanes<T>::read(x + col), silu<A>(Lanes<T>::read(gate + col))));
  }
  if (col == count) return;
  store_pair(buffered + col, product(read_partial(x + col, count - col),
                                     silu<A>(read_partial(gate + col, count - col))));
}

template <class T, class Input>
[[gnu::noinline]] typename Lanes<T>::A sum_pass(const Scaled<T, Input>& input, std::int64_t count,
                                                const LaterRow<T, 2>& later) {
  typename Lanes<T>::A sum;
  std::int64_t prefetched = 0;
  sums_of_block<T>(Squares<T, Scaled<T, Input>>{input}, 0, count, &sum, [&](std::int64_t col) {
    later.prefetch_part(prefetched, col);
    prefetched = col;
  });
  return sum;
}

template <class T, bool kNormFirst>
struct Results {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Scaled<T, typename InputOf<T, kNormFirst>::Row> input;
  A rstd;
  const A* weight;
  const T* gate;
  T* out;
  bool round_before_weight;

  MEMBOUND_ALWAYS_INLINE Pair<V> some(std::int64_t col, std::int64_t count) const {
    const bool rounds = round_before_weight;
    const V scale = V{} + rstd;
    const Pair<V> value = count == Lanes<T>::kStep ? input.whole(col) : input.partial(col, count);
    const Pair<V> h = rounded<T>(product<V>(value, {scale, scale}), rounds);
    const Pair<V> norm = product(h, load_pair<V>(weight + col));
    if constexpr (!kNormFirst) return norm;
    return product(rounded<T>(norm, rounds), silu<A>(read_some(gate + col, count)));
  }
};

template <bool kNonTemporal, class T, bool kNormFirst>
[[gnu::noinline]] void write_pass(const Results<T, kNormFirst>& all, std::int64_t count,
                                  const LaterRow<T, 2>& later) {
  using Row = Lanes<T>;
  const Results<T, kNormFirst> results = all;  // a copy that no store to out can alias
  std::int64_t col = 0;
  for (; col + Row::kStep <= count; col += Row::kStep) {
    later.prefetch_part(col, col + Row::kStep);
    write_step<kNonTemporal>(results.out + col, results.some(col, Row::kStep));
  }
  if (col < count) write_partial(results.out + col, results.some(col, count - col), count - col);
}

template <class T, bool kNormFirst>
struct GatedRow {
  using A = typename Lanes<T>::A;
  using Input = typename InputOf<T, kNormFirst>::Row;
  const RmsNormRows& rows;
  const std::int64_t row;
  const bool non_temporal;
  const T* const x = row_of<T>(rows.x, rows.x_row_stride, row);
  const T* const gate = row_of<T>(rows.gate, rows.gate_row_stride, row);
  T* const out = static_cast<T*>(rows.out) + row * rows.out_row_stride;
  T x_block[kBlock<T>], gate_block[kBlock<T>], out_block[kBlock<T>];
  std::int64_t buffered_cols = 0;  // of this row, from the first column on
  A buffered[kNormFirst ? 1 : kBufferedCols<T>];

  // A constructor, because aggregate initialisation would clear the blocks.
  GatedRow(const RmsNormRows& all, std::int64_t number, bool bypass)
      : rows(all), row(number), non_temporal(bypass) {}

  LaterRow<T, 2> later(std::int64_t from) const {
    const bool prefetches = rows.prefetch_ahead && row + 1 < rows.rows && rows.x_col_stride == 1 &&
                            rows.gate_col_stride == 1;
    if (!prefetches) return {};
    return {{x + rows.x_row_stride, gate + rows.gate_row_stride}, from, kPrefetchedQuarters};
  }

  const T* gate_at(std::int64_t first, std::int64_t count) {
    return gather(gate, rows.gate_col_stride, first, count, gate_block);
  }
  Input read(std::int64_t first, std::int64_t count) {
    if constexpr (kNormFirst) {
      return {gather(x, rows.x_col_stride, first, count, x_block)};
    } else {
      const bool fits = rows.cols <= kBufferedCols<T>;
      A* products = fits ? buffered + first : buffered;
      if (fits && first < buffered_cols) return {products};
      buffer_products(gather(x, rows.x_col_stride, first, count, x_block), gate_at(first, count),
                      count, products, later(first));
      buffered_cols = first + count;
      return {products};
    }
  }

  A sum(A scale) {
    BlockSum<A> total;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const Scaled<T, Input> input{read(first, count), scale};
      total.add(sum_pass(input, count, kNormFirst ? later(first) : LaterRow<T, 2>{}));
    });
    return total.value();
  }
  double largest() {
    double found = 0;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      found = largest_of<T>(read(first, count), count, found);
    });
    return found;
  }
  void write(const SafeRstd<A>& safe) {
    const auto* weight = static_cast<const A*>(rows.weight);
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      Results<T, kNormFirst> results{
          {read(first, count), safe.scale}, safe.rstd, weight + first, nullptr, out + first,
          rows.round_before_weight};
      if constexpr (kNormFirst) results.gate = gate_at(first, count);
      if (rows.out_col_stride != 1) results.out = out_block;
      non_temporal ? write_pass<true>(results, count, later(rows.cols + first))
                   : write_pass<false>(results, count, later(rows.cols + first));
      if (rows.out_col_stride != 1) scatter(out, rows.out_col_stride, first, count, out_block);
    });
  }

  void run() {
    const SafeRstd<A> safe =
        safe_rstd<A>(rows, [&](A scale) { return sum(scale); }, [&] { return largest(); });
    store_statistic(rows.rstd, rows.rstd_row_stride, row, safe.unscaled());
    write(safe);
  }
};

template <class T, bool kNormFirst>
void run(const RmsNormRows& rows) {
  const bool non_temporal = rows.bypass_cache && rows.out_col_stride == 1 &&
                            are_line_aligned<T>(rows.out, rows.out_row_stride);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    GatedRow<T, kNormFirst>(rows, row, non_temporal).run();
  }
  if (non_temporal) stream_fence();
}

template <class T>
void run_ordered(const RmsNormRows& rows) {
  rows.norm_before_gate ? run<T, true>(rows) : run<T, false>(rows);
}

}  // namespace

void rms_norm_gated(const RmsNormRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_ordered<Float16>(rows);
    case DType::kBFloat16: return run_ordered<BFloat16>(rows);
    case DType::kFloat32: return run_ordered<float>(rows);
    default: return run_ordered<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
