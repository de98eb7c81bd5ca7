// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm_backward.hpp"
#include "cpu/row.hpp"
#include "cpu/weight.hpp"

// The two passes of the backward. The first sums g * h along a few rows at once and dy * h down
// their columns, so that weight and weight_sum are read once for all of them; centred rows also sum
// g and dy. The second writes dx row by row. Each pass has only the template parameters it needs,
// which saves instantiations.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Drops the payload of a NaN: rounding to bfloat16 relies on a lower half of zeros.
template <class A>
MEMBOUND_ALWAYS_INLINE A plain_nan(A value) {
  return value == value ? value : static_cast<A>(__builtin_nanf(""));
}

template <class T, int kRows>
struct Group {
  using A = typename Lanes<T>::A;
  const T* dy[kRows];
  const T* x[kRows];
  const T* dsum[kRows];  // null: none
  T* dx[kRows];
  A mean[kRows];
  A rstd[kRows];
  const A* weight;
  A* weight_sum;
  A* bias_sum;
};

// Later rows to prefetch while these are computed.
template <class T>
struct PrefetchRows {
  static constexpr int kMost = 4;
  const T* dy[kMost];
  const T* x[kMost];
  const T* dsum[kMost];
  const T* dx[kMost];
  int rows;  // 0: no prefetch
  std::int64_t bytes_per_summed,
      bytes_per_written;  // bytes per element summed, and per element written

  MEMBOUND_ALWAYS_INLINE void prefetch(int row, std::int64_t first, std::int64_t last) const {
    prefetch_bytes<2>(dy[row], first, last);
    prefetch_bytes<2>(x[row], first, last);
    if (dsum[row] != nullptr) prefetch_bytes<2>(dsum[row], first, last);
  }
};

template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> weight_of(const typename Lanes<T>::A* weight,
                                                            std::int64_t col, std::int64_t count) {
  constexpr bool kPrepared = sizeof(T) != sizeof(*weight);
  return weight_step<T, kPrepared ? WeightForm::kPrepared : WeightForm::kNative>(weight, col,
                                                                                 count);
}

// h = x * rstd precedes every product, as x may be as large as rstd is small. Centred rows subtract
// the mean first.
template <class T, bool kCentred>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> normalised(const T* x, std::int64_t count,
                                                             typename Lanes<T>::A mean,
                                                             typename Lanes<T>::A rstd) {
  auto h = read_some(x, count);
  if constexpr (kCentred) h = {h.first - mean, h.second - mean};
  h = {h.first * rstd, h.second * rstd};
  return count == Lanes<T>::kStep ? h : first_of_step<T>(h, count);
}

// The compile-time parameters of the first pass.
template <class T_, bool kDot_, bool kDweight_, bool kRoundFirst_, bool kCentred_ = false>
struct Sums {
  using T = T_;
  static constexpr bool kCentred = kCentred_;
  static constexpr bool kDot = kDot_;
  static constexpr bool kDweight = kDweight_;
  static constexpr bool kRoundFirst = kRoundFirst_;
};

// One step of the first pass: g and h of each row (centred: then g of each again), and dy * h of
// all rows into weight_sum (dy into bias_sum).
template <class S, int kRows>
struct GradientTerms {
  using T = typename S::T;
  using Row = Lanes<T>;
  using V = typename Row::V;
  static constexpr int kSums = S::kCentred ? 2 * kRows : kRows, kProducts = kRows;
  static constexpr bool kDbias = S::kDweight && S::kCentred;
  const Group<T, kRows>& group;

  MEMBOUND_ALWAYS_INLINE void step(std::int64_t col, std::int64_t count,
                                   Factors<V>* factors) const {
    [[maybe_unused]] Pair<V> factor, weight_sum, bias_sum;
    if constexpr (S::kDot) factor = weight_of<T>(group.weight, col, count);
    if constexpr (S::kDweight) weight_sum = load_pair<V>(group.weight_sum + col);
    if constexpr (kDbias) bias_sum = load_pair<V>(group.bias_sum + col);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Pair<V> dy = read_some(group.dy[row] + col, count);
      const Pair<V> h =
          normalised<T, S::kCentred>(group.x[row] + col, count, group.mean[row], group.rstd[row]);
      if constexpr (S::kDot) {
        factors[row] = {{dy.first * factor.first, dy.second * factor.second}, h};
        if constexpr (S::kCentred) factors[kRows + row].left = factors[row].left;
      }
      if constexpr (S::kDweight) {
        Pair<V> seen = h;
        if constexpr (S::kRoundFirst) seen = Row::round(h);
        weight_sum = {multiply_add(dy.first, seen.first, weight_sum.first),
                      multiply_add(dy.second, seen.second, weight_sum.second)};
      }
      if constexpr (kDbias) bias_sum = {bias_sum.first + dy.first, bias_sum.second + dy.second};
    }
    if constexpr (S::kDweight) store_pair(group.weight_sum + col, weight_sum);
    if constexpr (kDbias) store_pair(group.bias_sum + col, bias_sum);
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* factors) const {
    step(col, Row::kStep, factors);
  }
  [[gnu::noinline]] void partial(std::int64_t col, std::int64_t count, Factors<V>* factors) const {
    step(col, count, factors);
  }
};

template <class S, int kRows>
[[gnu::noinline]] void sum_pass(const Group<typename S::T, kRows>& group, std::int64_t cols,
                                typename Lanes<typename S::T>::A* dots,
                                const PrefetchRows<typename S::T>& upcoming) {
  using T = typename S::T;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const GradientTerms<S, kRows> terms{group};
  std::int64_t prefetched = 0;
  const auto prefetch = [&](std::int64_t col) {
    for (int row = 0; row < upcoming.rows; ++row)
      upcoming.prefetch(row, prefetched, col * upcoming.bytes_per_summed);
    prefetched = col * upcoming.bytes_per_summed;
  };
  if constexpr (S::kDot) {
    sums_of_rows<T>(terms, cols, dots, prefetch);
  } else {
    std::int64_t col = 0;
    for (; col + kStep <= cols; col += kStep) {
      prefetch(col + kStep);
      terms.whole(col, nullptr);
    }
    if (col < cols) terms.partial(col, cols - col, nullptr);
  }
}

// dx = rstd * (g - mean(g) - h * mean(g * h)) + dsum; mean(g) for centred rows only.
template <bool kCentred, bool kAdd, class V, class A>
MEMBOUND_ALWAYS_INLINE Pair<V> gradient_of(Pair<V> g, Pair<V> h, A rstd, A mean_gh, A mean_g,
                                           Pair<V> dsum) {
  if constexpr (kCentred) g = {g.first - mean_g, g.second - mean_g};
  const V minus_mean = V{} - mean_gh;
  const V scale = V{} + rstd;
  const Pair<V> rest{multiply_add(h.first, minus_mean, g.first),
                     multiply_add(h.second, minus_mean, g.second)};
  if constexpr (kAdd) {
    return {multiply_add(rest.first, scale, dsum.first),
            multiply_add(rest.second, scale, dsum.second)};
  }
  return {rest.first * scale, rest.second * scale};
}

// One row of the second pass.
template <class T_, bool kAdd, bool kCentred>
struct GradientRow {
  using T = T_;
  using Row = Lanes<T>;
  using A = typename Row::A;
  using V = typename Row::V;
  const T* dy;
  const T* x;
  const T* dsum;
  T* dx;
  const A* weight;
  A mean, rstd, mean_gh, mean_g;

  MEMBOUND_ALWAYS_INLINE Pair<V> value(std::int64_t col, std::int64_t count) const {
    Pair<V> g = read_some(dy + col, count);
    const Pair<V> factor = weight_of<T>(weight, col, count);
    g = {g.first * factor.first, g.second * factor.second};
    const Pair<V> h = normalised<T, kCentred>(x + col, count, mean, rstd);
    Pair<V> more;
    if constexpr (kAdd) more = read_some(dsum + col, count);
    return gradient_of<kCentred, kAdd>(g, h, rstd, mean_gh, mean_g, more);
  }

  template <bool kNonTemporal>
  MEMBOUND_ALWAYS_INLINE void write(std::int64_t cols, int row,
                                    const PrefetchRows<T>& upcoming) const {
    std::int64_t head = kNonTemporal ? to_boundary(dx) : 0;
    if (head > cols) head = cols;
    if (head > 0) write_partial(dx, value(0, head), head);
    const std::int64_t whole = (cols - head) / Row::kStep * Row::kStep;
    const std::int64_t bytes = cols * static_cast<std::int64_t>(sizeof(T));
    const bool down = writes_downwards(x, dx, bytes) || writes_downwards(dy, dx, bytes);
    const std::int64_t by = down ? -Row::kStep : Row::kStep;
    std::int64_t at = head + (down ? whole - Row::kStep : 0);
    std::int64_t prefetched = cols * upcoming.bytes_per_summed;
    const bool prefetches = row < upcoming.rows;
    if (kNonTemporal && prefetches) prefetch_shared_line(upcoming.dx[row]);
    const std::int64_t some = Row::kStep * upcoming.bytes_per_written;
    for (std::int64_t col = 0; col < whole; col += Row::kStep, at += by, prefetched += some) {
      if (prefetches) upcoming.prefetch(row, prefetched, prefetched + some);
      if constexpr (kNonTemporal) {
        Row::write_non_temporal(dx + at, value(at, Row::kStep));
      } else {
        Row::write(dx + at, value(at, Row::kStep));
      }
    }
    const std::int64_t tail = head + whole;
    if (tail < cols) write_partial(dx + tail, value(tail, cols - tail), cols - tail);
  }
};

template <class R>
[[gnu::noinline]] void write_pass(const R* gradients, int count, std::int64_t cols,
                                  bool non_temporal, const PrefetchRows<typename R::T>& upcoming) {
  for (int row = 0; row < count; ++row) {
    const R& of = gradients[row];
    const R gradient{of.dy,   of.x,    of.dsum,    of.dx,    of.weight,
                     of.mean, of.rstd, of.mean_gh, of.mean_g};
    non_temporal ? gradient.template write<true>(cols, row, upcoming)
                 : gradient.template write<false>(cols, row, upcoming);
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
