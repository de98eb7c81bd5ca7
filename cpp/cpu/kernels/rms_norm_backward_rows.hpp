// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm_backward.hpp"
#include "cpu/row.hpp"
#include "cpu/weight.hpp"

// A few rows of the backward at once, so that weight and weight_sum are read once for all of them.
// The first pass adds up g * h along each row and dy * h down the columns, the second writes dx.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// What is computed, as far as the compiler should know.
template <class T_, bool kDx_, bool kDweight_, bool kWeight_, bool kAdd_, bool kRoundFirst_>
struct Recipe {
  using T = T_;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  static constexpr bool kDx = kDx_;
  static constexpr bool kDweight = kDweight_;
  static constexpr bool kWeight = kWeight_;
  static constexpr bool kAdd = kAdd_;
  static constexpr bool kRoundFirst = kRoundFirst_;
};

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

// kRows rows from one column on. h = x * rstd comes first: x may be as large as rstd is small.
template <class R_, int kRows_>
struct Group {
  using R = R_;
  using T = typename R::T;
  using A = typename R::A;
  using V = typename R::V;
  using Row = Lanes<T>;
  static constexpr int kRows = kRows_;
  const T* dy[kRows];
  const T* x[kRows];
  const T* dsum[kRows];
  T* dx[kRows];
  A rstd[kRows];
  const A* weight;
  A* weight_sum;

  static MEMBOUND_ALWAYS_INLINE Pair<V> read_some(const T* from, std::int64_t count) {
    return count == Row::kStep ? Row::read(from) : read_partial(from, count);
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> weight_at(std::int64_t col, std::int64_t count) const {
    constexpr WeightForm kForm =
        sizeof(T) == sizeof(A) ? WeightForm::kNative : WeightForm::kPrepared;
    if constexpr (R::kWeight) return weight_step<T, kForm>(weight, col, count);
    return {V{}, V{}};
  }
  static MEMBOUND_ALWAYS_INLINE Pair<V> weighted(Pair<V> dy, Pair<V> weight) {
    if constexpr (!R::kWeight) return dy;
    return {dy.first * weight.first, dy.second * weight.second};
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> normalised(int row, std::int64_t col, std::int64_t count) const {
    const auto value = read_some(x[row] + col, count);
    const Pair<V> h{value.first * rstd[row], value.second * rstd[row]};
    return count == Row::kStep ? h : keep<T>(h, count);
  }

  // The first pass of one step: g and h of each row, and dy * h of all into weight_sum.
  MEMBOUND_ALWAYS_INLINE void sum_step(std::int64_t col, std::int64_t count,
                                       Factors<V>* factors) const {
    const Pair<V> factor = weight_at(col, count);
    Pair<V> sum{};
    if constexpr (R::kDweight) {
      sum = {load<V>(weight_sum + col), load<V>(weight_sum + col + Row::kStep / 2)};
    }
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const auto gradient = read_some(dy[row] + col, count);
      const auto h = normalised(row, col, count);
      if constexpr (R::kDx) factors[row] = {weighted(gradient, factor), h};
      if constexpr (R::kDweight) {
        Pair<V> seen = h;
        if constexpr (R::kRoundFirst) seen = Row::round(h);
        sum = {multiply_add(gradient.first, seen.first, sum.first),
               multiply_add(gradient.second, seen.second, sum.second)};
      }
    }
    if constexpr (R::kDweight) {
      store(weight_sum + col, sum.first);
      store(weight_sum + col + Row::kStep / 2, sum.second);
    }
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* factors) const {
    sum_step(col, Row::kStep, factors);
  }
  [[gnu::noinline]] void partial(std::int64_t col, std::int64_t count, Factors<V>* factors) const {
    sum_step(col, count, factors);
  }

  // dx = rstd * (g - h * mean) + dsum of one step.
  MEMBOUND_ALWAYS_INLINE void gradients(std::int64_t col, std::int64_t count, const A* means,
                                        Pair<V>* result) const {
    const Pair<V> factor = weight_at(col, count);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const Pair<V> g = weighted(read_some(dy[row] + col, count), factor);
      const Pair<V> h = normalised(row, col, count);
      const V mean = V{} - means[row];
      const V scale = V{} + rstd[row];
      const Pair<V> rest{multiply_add(h.first, mean, g.first),
                         multiply_add(h.second, mean, g.second)};
      if constexpr (R::kAdd) {
        const Pair<V> more = read_some(dsum[row] + col, count);
        result[row] = {multiply_add(rest.first, scale, more.first),
                       multiply_add(rest.second, scale, more.second)};
      } else {
        result[row] = {rest.first * scale, rest.second * scale};
      }
    }
  }
  // All rows are read before one is written: rows that are a multiple of 4096 bytes apart hold each
  // other's loads up otherwise.
  template <bool kAroundCache>
  MEMBOUND_ALWAYS_INLINE void write_step(std::int64_t col, const A* means) const {
    Pair<V> result[kRows];
    gradients(col, Row::kStep, means, result);
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      if constexpr (kAroundCache) {
        Row::write_around_cache(dx[row] + col, result[row]);
      } else {
        Row::write(dx[row] + col, result[row]);
      }
    }
  }
  [[gnu::noinline]] void write_partial_step(std::int64_t col, std::int64_t count,
                                            const A* means) const {
    Pair<V> result[kRows];
    gradients(col, count, means, result);
    for (int row = 0; row < kRows; ++row) write_partial(dx[row] + col, result[row], count);
  }

  // Bytes [first, last) of what both passes read.
  template <int kLocality>
  MEMBOUND_ALWAYS_INLINE void ask(std::int64_t first, std::int64_t last) const {
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      ask_for<kLocality>(dy[row], first, last);
      ask_for<kLocality>(x[row], first, last);
      if constexpr (R::kAdd) ask_for<kLocality>(dsum[row], first, last);
    }
  }
};

template <class G, class Company = NoCompany>
MEMBOUND_ALWAYS_INLINE void sum_pass(const G& group, std::int64_t cols, typename G::A* means,
                                     Company company = {}) {
  using T = typename G::T;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  if constexpr (G::R::kDx) {
    sums_of_rows<T>(group, cols, means, company);
    for (int row = 0; row < G::kRows; ++row) means[row] /= static_cast<typename G::A>(cols);
  } else {
    std::int64_t col = 0;
    for (; col + kStep <= cols; col += kStep) {
      company(col + kStep);
      group.sum_step(col, kStep, nullptr);
    }
    if (col < cols) group.partial(col, cols - col, nullptr);
  }
}

// A row whose elements are apart, in blocks through small buffers.
template <class R>
struct RowInBlocks {
  using T = typename R::T;
  using A = typename R::A;
  using One = Group<R, 1>;
  static constexpr std::int64_t kStep = Lanes<T>::kStep;
  const RmsNormBackwardRows& rows;
  const One row;
  T dy_block[kBlock<T>];
  T x_block[kBlock<T>];
  T dsum_block[kBlock<T>];
  T dx_block[kBlock<T>];

  One read(std::int64_t first, std::int64_t count) {
    One block = row;
    block.dy[0] = gather(row.dy[0], rows.dy_col_stride, first, count, dy_block);
    block.x[0] = gather(row.x[0], rows.x_col_stride, first, count, x_block);
    if constexpr (R::kAdd) {
      block.dsum[0] = gather(row.dsum[0], rows.dsum_col_stride, first, count, dsum_block);
    }
    block.dx[0] = dx_block;
    if constexpr (R::kWeight) block.weight += first;
    if constexpr (R::kDweight) block.weight_sum += first;
    return block;
  }

  void run() {
    BlockSum<A> total;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      A sum{};
      if constexpr (R::kDx) {
        sums_of_block<T>(read(first, count), 0, count, &sum);
      } else {
        sum_pass(read(first, count), count, &sum);
      }
      total.add(sum);
    });
    if constexpr (R::kDx) write(total.value() / static_cast<A>(rows.cols));
  }

  void write(A mean) {
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const One block = read(first, count);
      std::int64_t i = 0;
      for (; i + kStep <= count; i += kStep) block.template write_step<false>(i, &mean);
      if (i < count) block.write_partial_step(i, count - i, &mean);
      scatter(row.dx[0], rows.dx_col_stride, first, count, dx_block);
    });
  }
};

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
