// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/gated_activation.hpp"

#include "cpu/activation.hpp"
#include "cpu/gate_row.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// A row, or a block of one, whose elements are contiguous.
template <class T, ActivationKind kKind, bool kPlain>
struct ForwardRow {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr bool kExact = sizeof(T) > 2, kScaled = kScales<kKind, kExact>;
  using Function = ActivationOf<kKind, A, kExact, kPlain, V>;

  A row_scale;
  const T* gate;
  UpRow<T, kPlain> up;
  T* out;

  MEMBOUND_ALWAYS_INLINE V result(V g, V u) const {
    if constexpr (!kPlain) {
      g = at_most(g, V{} + static_cast<A>(up.numbers->limit));
      u = up.factor(u) * row_scale;
    }
    const Activated<V> activated = Function::template of<false>(g, *up.numbers);
    return kScaled ? activated.value * (activated.scale * u) : activated.value * u;
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> results(Pair<V> g, Pair<V> u) const {
    return {result(g.first, u.first), result(g.second, u.second)};
  }

  // Runs whole steps from `first` up to `end`; returns the first column left. Not inlined: all
  // callers share one copy.
  [[gnu::noinline]] std::int64_t steps(std::int64_t first, std::int64_t end,
                                       CacheHints hints) const {
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    std::int64_t col = first;
    for (; col + kStep <= end; col += kStep) {
      prefetch_ahead(gate + col, kStep * sizeof(T), hints.prefetch_distance);
      if (up.up != nullptr) prefetch_ahead(up.up + col, kStep * sizeof(T), hints.prefetch_distance);
      const Pair<V> y = results(Lanes<T>::read(gate + col), up.read(col));
      hints.non_temporal ? Lanes<T>::write_non_temporal(out + col, y)
                         : Lanes<T>::write(out + col, y);
    }
    return col;
  }
  // At most one step, through padded buffers.
  MEMBOUND_ALWAYS_INLINE void some(std::int64_t first, std::int64_t count) const {
    if (count <= 0) return;
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    T gates[kStep] = {}, ups[kStep] = {}, outs[kStep];
    copy_some(gate + first, gates, count);
    copy_some(up.up ? up.up + first : nullptr, ups, count);
    ForwardRow{row_scale, gates, {up.numbers, up.up ? ups : nullptr}, outs}.steps(0, kStep, {});
    copy_some(outs, out + first, count);
  }
  MEMBOUND_ALWAYS_INLINE void run(std::int64_t count, CacheHints hints) const {
    std::int64_t first = hints.non_temporal ? to_boundary(out) : 0;
    first = first < count ? first : count;
    some(0, first);
    const std::int64_t col = steps(first, count, hints);
    some(col, count - col);
  }
};

// The arrays of a row, for code that is independent of the activation.
template <class T>
struct ForwardArrays {
  const ActivationNumbers* numbers;
  typename Lanes<T>::A row_scale;
  const T* gate;
  const T* up;
  T* out;
};
template <class T>
using RunRow = void (*)(const ForwardArrays<T>&, std::int64_t count, CacheHints hints);

template <class T, ActivationKind kKind, bool kPlain>
void run_row(const ForwardArrays<T>& a, std::int64_t count, CacheHints hints) {
  const ForwardRow<T, kKind, kPlain> row{a.row_scale, a.gate, {a.numbers, a.up}, a.out};
  row.run(count, hints);
}

template <class T>
[[gnu::noinline]] void run_rows(const GatedActivationRows& rows, RunRow<T> run) {
  const Strided<const T> gate{static_cast<const T*>(rows.gate), rows.gate_row_stride,
                              rows.gate_col_stride};
  const Strided<const T> up{static_cast<const T*>(rows.up), rows.up_row_stride, rows.up_col_stride};
  const Strided<T> out{static_cast<T*>(rows.out), rows.out_row_stride, rows.out_col_stride};
  const auto scale_of = [&](std::int64_t row) MEMBOUND_INLINED {
    return row_scale_of<T>(rows.row_scale, rows.row_scale_row_stride, row);
  };
  const bool strided = gate.is_strided() || up.is_strided() || out.is_strided();
  if (!strided && (rows.rows == 1 || !is_narrow<T>(rows.cols))) {
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      run({&rows.numbers, scale_of(row), gate.row(row), up.row(row), out.row(row)}, rows.cols,
          {rows.bypass_cache, rows.prefetch_distance});
    }
    if (rows.bypass_cache) stream_fence();
    return;
  }
  const TileSize size =
      tile_size<T>(rows.cols, gate.is_transposed() || up.is_transposed() || out.is_transposed());
  each_tile(rows.rows, rows.cols, size, [&](auto row, auto count, auto col, auto cols) {
    T gates[kBlock<T>], ups[kBlock<T>], outs[kBlock<T>];
    const T* g = gather_tile(gate, row, count, col, cols, gates);
    const T* u = gather_tile(up, row, count, col, cols, ups);
    each_row_of_tile(
        row, count, cols, rows.row_scale == nullptr, [&](auto first, auto length, auto at) {
          run({&rows.numbers, scale_of(at), g + first, u ? u + first : nullptr, outs + first},
              length, {});
        });
    scatter_tile(out, row, count, col, cols, outs);
  });
}

template <class T>
void run(const GatedActivationRows& rows) {
  dispatch_activation(rows.numbers, [&]<ActivationKind kKind, bool kPlain>() {
    run_rows<T>(rows, run_row<T, kKind, kPlain>);
  });
}

}  // namespace

void gated_activation(const GatedActivationRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run<Float16>(rows);
    case DType::kBFloat16: return run<BFloat16>(rows);
    case DType::kFloat32: return run<float>(rows);
    default: return run<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
