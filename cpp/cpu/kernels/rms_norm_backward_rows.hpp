// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm_backward.hpp"
#include "cpu/row.hpp"
#include "cpu/weight.hpp"

// The two passes of the backward: the first adds up g * h along a few rows at once and dy * h down
// their columns, so that weight and weight_sum are read once for all of them; the second writes dx
// row by row. Neither knows more of the call than it needs: fewer copies for the compiler to make.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class T, int kRows>
struct Group {
  using A = typename Lanes<T>::A;
  const T* dy[kRows];
  const T* x[kRows];
  const T* dsum[kRows];  // null: none
  T* dx[kRows];
  A rstd[kRows];
  const A* weight;
  A* weight_sum;
};

// Later rows, to be asked for while these are computed.
template <class T>
struct Ahead {
  static constexpr int kMost = 4;
  const T* dy[kMost];
  const T* x[kMost];
  const T* dsum[kMost];
  int rows;                  // 0: nothing is asked for
  std::int64_t early, late;  // bytes of a row for each element summed, for each element written

  MEMBOUND_ALWAYS_INLINE void ask(int row, std::int64_t first, std::int64_t last) const {
    ask_for<2>(dy[row], first, last);
    ask_for<2>(x[row], first, last);
    if (dsum[row] != nullptr) ask_for<2>(dsum[row], first, last);
  }
};

template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> read_some(const T* from, std::int64_t count) {
  return count == Lanes<T>::kStep ? Lanes<T>::read(from) : read_partial(from, count);
}

template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> weight_of(const typename Lanes<T>::A* weight,
                                                            std::int64_t col, std::int64_t count) {
  constexpr bool kPrepared = sizeof(T) != sizeof(*weight);
  return weight_step<T, kPrepared ? WeightForm::kPrepared : WeightForm::kNative>(weight, col,
                                                                                 count);
}

// The first `count` elements of value, zeros behind them. What stands there is not always zero:
// 0 * rstd may be NaN.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> keep(Pair<typename Lanes<T>::V> value,
                                                       std::int64_t count) {
  using V = typename Lanes<T>::V;
  T marks[Lanes<T>::kStep] = {};
  __builtin_memset(marks, 0x3c, count * sizeof(T));
  const auto kept = Lanes<T>::read(marks);
  return {kept.first != 0 ? value.first : V{}, kept.second != 0 ? value.second : V{}};
}

// h = x * rstd comes before every product: x may be as large as rstd is small.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> normalised(const T* x, std::int64_t count,
                                                             typename Lanes<T>::A rstd) {
  const auto value = read_some(x, count);
  const Pair<typename Lanes<T>::V> h{value.first * rstd, value.second * rstd};
  return count == Lanes<T>::kStep ? h : keep<T>(h, count);
}

// What the first pass adds up.
template <class T_, bool kDot_, bool kDweight_, bool kWeight_, bool kRoundFirst_>
struct Sums {
  using T = T_;
  static constexpr bool kDot = kDot_;
  static constexpr bool kDweight = kDweight_;
  static constexpr bool kWeight = kWeight_;
  static constexpr bool kRoundFirst = kRoundFirst_;
};

// One step of the first pass: g and h of each row, and dy * h of all of them into weight_sum.
template <class S, int kRows_>
struct GradientTerms {
  using T = typename S::T;
  using Row = Lanes<T>;
  using V = typename Row::V;
  static constexpr int kRows = kRows_;
  const Group<T, kRows>& group;

  MEMBOUND_ALWAYS_INLINE void step(std::int64_t col, std::int64_t count,
                                   Factors<V>* factors) const {
    typename Row::A* const to = group.weight_sum + col;
    [[maybe_unused]] Pair<V> factor, sum;
    if constexpr (S::kWeight && S::kDot) factor = weight_of<T>(group.weight, col, count);
    if constexpr (S::kDweight) sum = {load<V>(to), load<V>(to + Row::kStep / 2)};
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Pair<V> dy = read_some(group.dy[row] + col, count);
      const Pair<V> h = normalised<T>(group.x[row] + col, count, group.rstd[row]);
      if constexpr (S::kDot) {
        factors[row] = {dy, h};
        if constexpr (S::kWeight) {
          factors[row].left = {dy.first * factor.first, dy.second * factor.second};
        }
      }
      if constexpr (S::kDweight) {
        Pair<V> seen = h;
        if constexpr (S::kRoundFirst) seen = Row::round(h);
        sum = {multiply_add(dy.first, seen.first, sum.first),
               multiply_add(dy.second, seen.second, sum.second)};
      }
    }
    if constexpr (S::kDweight) {
      store(to, sum.first);
      store(to + Row::kStep / 2, sum.second);
    }
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
                                const Ahead<typename S::T>& ahead) {
  using T = typename S::T;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const GradientTerms<S, kRows> terms{group};
  std::int64_t asked = 0;
  const auto ask = [&](std::int64_t col) {
    for (int row = 0; row < ahead.rows; ++row) ahead.ask(row, asked, col * ahead.early);
    asked = col * ahead.early;
  };
  if constexpr (S::kDot) {
    sums_of_rows<T>(terms, cols, dots, ask);
  } else {
    std::int64_t col = 0;
    for (; col + kStep <= cols; col += kStep) {
      ask(col + kStep);
      terms.whole(col, nullptr);
    }
    if (col < cols) terms.partial(col, cols - col, nullptr);
  }
}

// One row of the second pass: dx = rstd * (g - h * mean) + dsum.
template <class T_, bool kWeight, bool kAdd>
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
  A rstd, mean;

  MEMBOUND_ALWAYS_INLINE Pair<V> value(std::int64_t col, std::int64_t count) const {
    Pair<V> g = read_some(dy + col, count);
    if constexpr (kWeight) {
      const Pair<V> factor = weight_of<T>(weight, col, count);
      g = {g.first * factor.first, g.second * factor.second};
    }
    const Pair<V> h = normalised<T>(x + col, count, rstd);
    const V minus_mean = V{} - mean;
    const V scale = V{} + rstd;
    const Pair<V> rest{multiply_add(h.first, minus_mean, g.first),
                       multiply_add(h.second, minus_mean, g.second)};
    if constexpr (kAdd) {
      const Pair<V> more = read_some(dsum + col, count);
      return {multiply_add(rest.first, scale, more.first),
              multiply_add(rest.second, scale, more.second)};
    }
    return {rest.first * scale, rest.second * scale};
  }

  template <bool kAroundCache>
  MEMBOUND_ALWAYS_INLINE void write(std::int64_t cols, int row, const Ahead<T>& ahead) const {
    const std::int64_t whole = cols / Row::kStep * Row::kStep;
    const std::int64_t bytes = cols * static_cast<std::int64_t>(sizeof(T));
    const bool down = writes_downwards(x, dx, bytes) || writes_downwards(dy, dx, bytes);
    const std::int64_t by = down ? -Row::kStep : Row::kStep;
    std::int64_t at = down ? whole - Row::kStep : 0;
    std::int64_t asked = cols * ahead.early;
    const bool asks = row < ahead.rows;
    const std::int64_t some = Row::kStep * ahead.late;
    for (std::int64_t col = 0; col < whole; col += Row::kStep, at += by, asked += some) {
      if (asks) ahead.ask(row, asked, asked + some);
      if constexpr (kAroundCache) {
        Row::write_around_cache(dx + at, value(at, Row::kStep));
      } else {
        Row::write(dx + at, value(at, Row::kStep));
      }
    }
    if (whole < cols) write_partial(dx + whole, value(whole, cols - whole), cols - whole);
  }
};

template <class R>
[[gnu::noinline]] void write_pass(const R* gradients, int count, std::int64_t cols,
                                  bool around_cache, const Ahead<typename R::T>& ahead) {
  for (int row = 0; row < count; ++row) {
    const R gradient = gradients[row];
    around_cache ? gradient.template write<true>(cols, row, ahead)
                 : gradient.template write<false>(cols, row, ahead);
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
