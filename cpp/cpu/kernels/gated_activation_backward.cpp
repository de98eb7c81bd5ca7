// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/gated_activation_backward.hpp"

#include "cpu/activation.hpp"
#include "cpu/gate_row.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// One row, or a block of one, whose elements are neighbours. Everything of a step is read before
// its gradients are written: they may lie over it.
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
    V held = g, factor = u;
    if constexpr (!kPlain) {
      held = at_most(g, limit);
      factor = up.factor(u);
      d *= row_scale;
    }
    const Activated<V> found = Function::template of<true>(held, *up.numbers);
    // In this order a slope of 0 meets no infinity.
    Gradients both{d * found.slope, d * found.value};
    both.dgate *= kScaled ? factor * found.scale : factor;
    if constexpr (kScaled) both.dup *= found.scale;
    if constexpr (!kPlain) {
      both.dgate = g > limit ? V{} : both.dgate;
      both.dup = u > limit ? V{} : u < -limit ? V{} : both.dup;
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

  // The whole steps of `count` elements; returns what comes behind them. Once in the code for all
  // callers.
  [[gnu::noinline]] std::int64_t steps(std::int64_t count) const {
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    std::int64_t col = 0;
    for (; col + kStep <= count; col += kStep) {
      const Pairs both =
          results(Lanes<T>::read(dy + col), Lanes<T>::read(gate + col), up.read(col));
      if (dgate != nullptr) Lanes<T>::write(dgate + col, both.dgate);
      if (dup != nullptr) Lanes<T>::write(dup + col, both.dup);
    }
    return col;
  }
  MEMBOUND_ALWAYS_INLINE void run(std::int64_t count) const {
    constexpr std::int64_t kStep = Lanes<T>::kStep;
    const std::int64_t first = steps(count), left = count - first;
    if (left == 0) return;
    const auto behind = [first](auto* array) { return array ? array + first : nullptr; };
    T dys[kStep] = {}, gates[kStep] = {}, ups[kStep] = {}, dgates[kStep], dups[kStep];
    copy_some(dy + first, dys, left);
    copy_some(gate + first, gates, left);
    copy_some(behind(up.up), ups, left);
    BackwardRow{row_scale, dys, gates, {up.numbers, up.up ? ups : nullptr}, dgates, dups}.steps(
        kStep);
    copy_some(dgates, behind(dgate), left);
    copy_some(dups, behind(dup), left);
  }
};

template <class T, ActivationKind kKind, bool kPlain>
[[gnu::noinline]] void run_rows(const GatedActivationBackwardRows& rows) {
  using Row = BackwardRow<T, kKind, kPlain>;
  const auto is_apart = [](const void* array, std::int64_t stride) {
    return array != nullptr && stride != 1;
  };
  const bool apart = rows.dy_col_stride != 1 || rows.gate_col_stride != 1 ||
                     is_apart(rows.up, rows.up_col_stride) ||
                     is_apart(rows.dgate, rows.dgate_col_stride) ||
                     is_apart(rows.dup, rows.dup_col_stride);
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const auto written = [row](void* array, std::int64_t stride) {
      return array ? static_cast<T*>(array) + row * stride : nullptr;
    };
    const T* dy = row_of<T>(rows.dy, rows.dy_row_stride, row);
    const T* gate = row_of<T>(rows.gate, rows.gate_row_stride, row);
    const T* up = rows.up ? row_of<T>(rows.up, rows.up_row_stride, row) : nullptr;
    T* dgate = written(rows.dgate, rows.dgate_row_stride);
    T* dup = written(rows.dup, rows.dup_row_stride);
    const auto scale = row_scale_of<T>(rows.row_scale, rows.row_scale_row_stride, row);
    if (!apart) {
      Row{scale, dy, gate, {&rows.numbers, up}, dgate, dup}.run(rows.cols);
      continue;
    }
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) MEMBOUND_INLINED {
      T copies[5][kBlock<T>];
      T* to_dgate = to_neighbours(dgate, rows.dgate_col_stride, first, copies[0]);
      T* to_dup = to_neighbours(dup, rows.dup_col_stride, first, copies[1]);
      Row{scale,
          neighbours(dy, rows.dy_col_stride, first, count, copies[2]),
          neighbours(gate, rows.gate_col_stride, first, count, copies[3]),
          {&rows.numbers, neighbours(up, rows.up_col_stride, first, count, copies[4])},
          to_dgate,
          to_dup}
          .run(count);
      spread(dgate, rows.dgate_col_stride, first, count, to_dgate);
      spread(dup, rows.dup_col_stride, first, count, to_dup);
    });
  }
}

template <class T>
void run(const GatedActivationBackwardRows& rows) {
  dispatch_activation(
      rows.numbers, [&]<ActivationKind kKind, bool kPlain>() { run_rows<T, kKind, kPlain>(rows); });
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
