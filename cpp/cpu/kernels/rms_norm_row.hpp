// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm.hpp"
#include "cpu/row.hpp"
#include "cpu/weight.hpp"

// One row of RMSNorm: the arithmetic of a step, and whole rows in blocks.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

MEMBOUND_ALWAYS_INLINE float square_root(float value) { return __builtin_sqrtf(value); }
MEMBOUND_ALWAYS_INLINE double square_root(double value) { return __builtin_sqrt(value); }

MEMBOUND_ALWAYS_INLINE float power_of_two(int exponent, float) {
  return bit_copy<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}
MEMBOUND_ALWAYS_INLINE double power_of_two(int exponent, double) {
  return bit_copy<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// How rows are normalised, as far as the compiler should know.
template <class T_, WeightForm kForm_, bool kRoundFirst_, bool kAdd_>
struct Recipe {
  using T = T_;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  using Input = InputRow<T, kAdd_>;
  static constexpr WeightForm kForm = kForm_;
  static constexpr bool kRoundFirst = kRoundFirst_;
  static constexpr bool kAdd = kAdd_;
};

// value * rstd * weight for `count` elements (a whole step or less) from column col on.
template <class R>
MEMBOUND_ALWAYS_INLINE Pair<typename R::V> apply(Pair<typename R::V> value, typename R::A rstd,
                                                 const void* weight, std::int64_t col,
                                                 std::int64_t count) {
  using Row = Lanes<typename R::T>;
  value.first *= rstd;
  value.second *= rstd;
  if constexpr (R::kRoundFirst) value = Row::round(value);
  if constexpr (R::kForm != WeightForm::kNone) {
    const auto factor = weight_step<typename R::T, R::kForm>(weight, col, count);
    value.first *= factor.first;
    value.second *= factor.second;
  }
  return value;
}

// Where a row goes; sum is there with a residual only.
template <class T>
struct OutputRow {
  T* out;
  T* sum;
};

template <class R>
struct RowsOf {
  using T = typename R::T;
  const T* x;
  const T* residual;
  T* out;
  T* sum;
  std::int64_t x_stride, residual_stride, out_stride, sum_stride;

  MEMBOUND_ALWAYS_INLINE explicit RowsOf(const RmsNormRows& rows)
      : x(static_cast<const T*>(rows.x)),
        residual(static_cast<const T*>(rows.residual)),
        out(static_cast<T*>(rows.out)),
        sum(static_cast<T*>(rows.residual_out)),
        x_stride(rows.x_row_stride),
        residual_stride(rows.residual_row_stride),
        out_stride(rows.out_row_stride),
        sum_stride(rows.residual_out_row_stride) {}

  MEMBOUND_ALWAYS_INLINE typename R::Input input(std::int64_t row) const {
    if constexpr (R::kAdd) {
      return {x + row * x_stride, residual + row * residual_stride};
    } else {
      return {x + row * x_stride};
    }
  }
  MEMBOUND_ALWAYS_INLINE OutputRow<T> output(std::int64_t row) const {
    return {out + row * out_stride, R::kAdd ? sum + row * sum_stride : nullptr};
  }
};

template <class A>
MEMBOUND_ALWAYS_INLINE void store_rstd(const RmsNormRows& rows, std::int64_t row, A rstd) {
  if (rows.rstd != nullptr) static_cast<A*>(rows.rstd)[row * rows.rstd_row_stride] = rstd;
}

// A row in blocks through small buffers: any column strides, and values scaled by a power of two
// where the plain sum left its range.
template <class T, bool kAdd>
struct RowInBlocks {
  using A = typename Lanes<T>::A;
  using Input = InputRow<T, kAdd>;
  static constexpr std::int64_t kStep = Lanes<T>::kStep;
  const RmsNormRows& rows;
  const Input input;
  const OutputRow<T> output;
  T x_block[kBlock<T>];
  T residual_block[kAdd ? kBlock<T> : 1];
  T out_block[kBlock<T>];
  T sum_block[kAdd ? kBlock<T> : 1];

  MEMBOUND_ALWAYS_INLINE Input read(std::int64_t first, std::int64_t count) {
    const T* x = gather(input.x, rows.x_col_stride, first, count, x_block);
    if constexpr (kAdd) {
      return {x, gather(input.residual, rows.residual_col_stride, first, count, residual_block)};
    } else {
      return {x};
    }
  }

  // Out of line, as all that does not depend on the recipe.
  [[gnu::noinline]] A sum_of_squares(A scale) {
    using Row = Scaled<T, Input>;
    BlockSum<A> total;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      A sum;
      sums_of_block<T>(Squares<T, Row>{{read(first, count), scale}}, 0, count, &sum);
      total.add(sum);
    });
    return total.value();
  }

  [[gnu::noinline]] double largest() {
    double found = 0;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const Input block = read(first, count);
      for (std::int64_t i = 0; i < count; i += kStep) {
        A values[kStep];
        const auto value = block.partial(i, count - i < kStep ? count - i : kStep);
        store(values, value.first);
        store(values + kStep / 2, value.second);
        for (const A one : values) {
          const double magnitude = __builtin_fabs(one);
          found = magnitude > found ? magnitude : found;
        }
      }
    });
    return found;
  }

  template <class R>
  void write(A scale, A rstd) {
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const Input block = read(first, count);
      for (std::int64_t i = 0; i < count; i += kStep) {
        const std::int64_t some = count - i < kStep ? count - i : kStep;
        auto value = some == kStep ? block.whole(i) : block.partial(i, some);
        if constexpr (kAdd) write_partial(sum_block + i, value, some);
        value.first *= scale;
        value.second *= scale;
        write_partial(out_block + i, apply<R>(value, rstd, rows.weight, first + i, some), some);
      }
      scatter(output.out, rows.out_col_stride, first, count, out_block);
      if constexpr (kAdd) {
        scatter(output.sum, rows.residual_out_col_stride, first, count, sum_block);
      }
    });
  }
};

template <class A>
MEMBOUND_ALWAYS_INLINE bool is_trusted(const RmsNormRows& rows, A sum) {
  return sum >= static_cast<A>(rows.safe_low) && sum <= static_cast<A>(rows.safe_high);
}

template <class R>
[[gnu::noinline]] void normalise_in_blocks(const RmsNormRows& rows, std::int64_t row) {
  using A = typename R::A;
  const RowsOf<R> at(rows);
  RowInBlocks<typename R::T, R::kAdd> blocks{rows, at.input(row), at.output(row), {}, {}, {}, {}};
  A scale = 1;
  A sum = blocks.sum_of_squares(scale);
  A rstd = 1 / square_root(sum / static_cast<A>(rows.cols) + static_cast<A>(rows.eps));
  if (!is_trusted(rows, sum)) {
    scale = power_of_two(rows.safe_exponent(blocks.largest(), rows.eps), A{});
    sum = blocks.sum_of_squares(scale);
    const double mean = static_cast<double>(sum) / static_cast<double>(rows.cols);
    rstd = static_cast<A>(1 / square_root(mean + rows.eps * scale * scale));
  }
  store_rstd(rows, row, static_cast<A>(static_cast<double>(rstd) * static_cast<double>(scale)));
  blocks.template write<R>(scale, rstd);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
