// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/gated_activation_backward.hpp"

#include "cpu/activation.hpp"
#include "cpu/gate_row.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// A row, or a block of one, whose elements are contiguous. All inputs of a step are read before its
// gradients are written, which may overwrite them.
template <class T, ActivationKind kKind, bool kPlain>
struct BackwardRow {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr bool kExact = sizeof(T) > 2, kScaled = kScales<kKind, kExact>;
  using Function = ActivationOf<kKind, A, kExact, kPlain, V>;

  A row_scale;
  const T* dy;
  const T* gate;
  UpRow<T, kPlain> up;
  T* dgate;  // null: not wanted
  T* dup;    // null: not wanted

  struct Gradients {
    V dgate, dup;
  };
  MEMBOUND_ALWAYS_INLINE Gradients gradients(V d, V g, V u) const {
    const V limit = V{} + static_cast<A>(up.numbers->limit);
    V clamped = g, factor = u;
    if constexpr (!kPlain) {
      clamped = at_most(g, limit);
      factor = up.factor(u);
      d *= row_scale;
    }
    const Activated<V> activated = Function::template of<true>(clamped, *up.numbers);
    // In this order, a slope of 0 is never multiplied by an infinity.
    Gradients both{d * activated.slope, d * activated.value};
    both.dgate *= kScaled ? factor * activated.scale : factor;
    if constexpr (kScaled) both.dup *= activated.scale;
    if constexpr (!kPlain) {
      both.dgate = g > limit ? V{} : both.dgate;
      both.dup = up.slope(u, both.dup);
    }
    return both;
  }
  struct Pairs {
    Pair<V> dgate, dup;
  };
  MEMBOUND_ALWAYS_INLINE Pairs results(Pair<V> d, Pair<V> g, Pair<V> u) const {
    const Gradients first = gradients(d.first, g.first, u.first);
    const Gradients second = gradients(d.second, g.second, u.second);
    return {{first.dgate, second.dgate}, {first.dup, second.dup}};
  }

  // Runs whole steps from `first` up to `end`; returns the first column left. Not inlined: all
  // callers share one copy.
  [[gnu::noinline]] std::int64_t steps(std::int64_t first, std::int64_t end,
                                       CacheHints hints) const {
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    const auto write = [=](T* to, Pair<V> value) MEMBOUND_INLINED {
      if (to == nullptr) return;
      hints.non_temporal ? Lanes<T>::write_non_temporal(to, value) : Lanes<T>::write(to, value);
    };
    const auto offset_pointer = [](T* to, std::int64_t at)
                                    MEMBOUND_INLINED { return to != nullptr ? to + at : nullptr; };
    std::int64_t col = first;
    for (; col + kStep <= end; col += kStep) {
      prefetch_ahead(dy + col, kStep * sizeof(T), hints.prefetch_distance);
      prefetch_ahead(gate + col, kStep * sizeof(T), hints.prefetch_distance);
      if (up.up != nullptr) prefetch_ahead(up.up + col, kStep * sizeof(T), hints.prefetch_distance);
      const Pairs both =
          results(Lanes<T>::read(dy + col), Lanes<T>::read(gate + col), up.read(col));
      write(offset_pointer(dgate, col), both.dgate);
      write(offset_pointer(dup, col), both.dup);
    }
    return col;
  }
  // At most one step, through padded buffers.
  MEMBOUND_ALWAYS_INLINE void some(std::int64_t first, std::int64_t count) const {
    if (count <= 0) return;
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    const auto offset_pointer = [first](auto* array) { return array ? array + first : nullptr; };
    T dys[kStep] = {}, gates[kStep] = {}, ups[kStep] = {}, dgates[kStep], dups[kStep];
    copy_some(dy + first, dys, count);
    copy_some(gate + first, gates, count);
    copy_some(offset_pointer(up.up), ups, count);
    BackwardRow{row_scale, dys, gates, {up.numbers, up.up ? ups : nullptr}, dgates, dups}.steps(
        0, kStep, {});
    copy_some(dgates, offset_pointer(dgate), count);
    copy_some(dups, offset_pointer(dup), count);
  }
  // Non-temporal stores need both results to reach vector alignment at the same element.
  MEMBOUND_ALWAYS_INLINE void run(std::int64_t count, CacheHints hints) const {
    const std::int64_t boundary = to_boundary(dgate != nullptr ? dgate : dup);
    if (dup != nullptr && to_boundary(dup) != boundary) hints.non_temporal = false;
    std::int64_t first = hints.non_temporal ? boundary : 0;
    first = first < count ? first : count;
    some(0, first);
    const std::int64_t col = steps(first, count, hints);
    some(col, count - col);
  }
};

// The arrays of a row, for code that is independent of the activation.
template <class T>
struct BackwardArrays {
  const ActivationNumbers* numbers;
  typename Lanes<T>::A row_scale;
  const T* dy;
  const T* gate;
  const T* up;
  T* dgate;
  T* dup;
};
template <class T>
using RunRow = void (*)(const BackwardArrays<T>&, std::int64_t count, CacheHints hints);

template <class T, ActivationKind kKind, bool kPlain>
void run_row(const BackwardArrays<T>& a, std::int64_t count, CacheHints hints) {
  const BackwardRow<T, kKind, kPlain> row{a.row_scale,       a.dy,    a.gate,
                                          {a.numbers, a.up}, a.dgate, a.dup};
  row.run(count, hints);
}

template <class T>
[[gnu::noinline]] void run_rows(const GatedActivationBackwardRows& rows, RunRow<T> run) {
  const Strided<const T> dy{static_cast<const T*>(rows.dy), rows.dy_row_stride, rows.dy_col_stride};
  const Strided<const T> gate{static_cast<const T*>(rows.gate), rows.gate_row_stride,
                              rows.gate_col_stride};
  const Strided<const T> up{static_cast<const T*>(rows.up), rows.up_row_stride, rows.up_col_stride};
  const Strided<T> dgate{static_cast<T*>(rows.dgate), rows.dgate_row_stride, rows.dgate_col_stride};
  const Strided<T> dup{static_cast<T*>(rows.dup), rows.dup_row_stride, rows.dup_col_stride};
  const auto scale_of = [&](std::int64_t row) MEMBOUND_INLINED {
    return row_scale_of<T>(rows.row_scale, rows.row_scale_row_stride, row);
  };
  const bool strided = dy.is_strided() || gate.is_strided() || up.is_strided() ||
                       dgate.is_strided() || dup.is_strided();
  if (!strided && (rows.rows == 1 || !is_narrow<T>(rows.cols))) {
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      run({&rows.numbers, scale_of(row), dy.row(row), gate.row(row), up.row(row), dgate.row(row),
           dup.row(row)},
          rows.cols, {rows.bypass_cache, rows.prefetch_distance});
    }
    if (rows.bypass_cache) stream_fence();
    return;
  }
  const TileSize size =
      tile_size<T>(rows.cols, dy.is_transposed() || gate.is_transposed() || up.is_transposed() ||
                                  dgate.is_transposed() || dup.is_transposed());
  each_tile(rows.rows, rows.cols, size, [&](auto row, auto count, auto col, auto cols) {
    T dys[kBlock<T>], gates[kBlock<T>], ups[kBlock<T>], dgates[kBlock<T>], dups[kBlock<T>];
    const T* d = gather_tile(dy, row, count, col, cols, dys);
    const T* g = gather_tile(gate, row, count, col, cols, gates);
    const T* u = gather_tile(up, row, count, col, cols, ups);
    each_row_of_tile(
        row, count, cols, rows.row_scale == nullptr, [&](auto first, auto length, auto at) {
          run({&rows.numbers, scale_of(at), d + first, g + first, u ? u + first : nullptr,
               dgate.data ? dgates + first : nullptr, dup.data ? dups + first : nullptr},
              length, {});
        });
    scatter_tile(dgate, row, count, col, cols, dgates);
    scatter_tile(dup, row, count, col, cols, dups);
  });
}

template <class T>
void run(const GatedActivationBackwardRows& rows) {
  dispatch_activation(rows.numbers, [&]<ActivationKind kKind, bool kPlain>() {
    run_rows<T>(rows, run_row<T, kKind, kPlain>);
  });
}

}  // namespace

void gated_activation_backward(const GatedActivationBackwardRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run<Float16>(rows);
    case DType::kBFloat16: return run<BFloat16>(rows);
    case DType::kFloat32: return run<float>(rows);
    default: return run<double>(rows);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
