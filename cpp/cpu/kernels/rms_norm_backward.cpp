// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_backward.hpp"

#include "cpu/row.hpp"
#include "cpu/weight.hpp"

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

template <class V, class A>
MEMBOUND_ALWAYS_INLINE Pair<V> times(Pair<V> value, A factor) {
  return {value.first * factor, value.second * factor};
}

// The first `count` elements of value, zeros behind them. What stands there is not always zero:
// 0 * rstd may be NaN.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> keep(Pair<typename Lanes<T>::V> value,
                                                       std::int64_t count) {
  using V = typename Lanes<T>::V;
  unsigned char ones[Lanes<T>::kStep * sizeof(T)] = {};
  __builtin_memset(ones, 0x3c, count * sizeof(T));
  const auto kept = Lanes<T>::read(reinterpret_cast<const T*>(ones));
  return {kept.first != 0 ? value.first : V{}, kept.second != 0 ? value.second : V{}};
}

// Columns of a row from some column on: h = x * rstd and g = dy * weight.
template <class R>
struct Columns {
  using T = typename R::T;
  using A = typename R::A;
  using V = typename R::V;
  using Row = Lanes<T>;
  const T* dy;
  const T* x;
  const A* weight;
  A rstd;

  MEMBOUND_ALWAYS_INLINE Pair<V> weighted(Pair<V> value, std::int64_t col,
                                          std::int64_t count) const {
    if constexpr (!R::kWeight) return value;
    constexpr WeightForm kForm =
        sizeof(T) == sizeof(A) ? WeightForm::kNative : WeightForm::kPrepared;
    const auto factor = weight_step<T, kForm>(weight, col, count);
    return {value.first * factor.first, value.second * factor.second};
  }
  MEMBOUND_ALWAYS_INLINE Factors<V> whole(std::int64_t col) const {
    return {weighted(Row::read(dy + col), col, Row::kStep), times(Row::read(x + col), rstd)};
  }
  MEMBOUND_ALWAYS_INLINE Factors<V> partial(std::int64_t col, std::int64_t count) const {
    return {weighted(read_partial(dy + col, count), col, count),
            keep<T>(times(read_partial(x + col, count), rstd), count)};
  }
};

// weight_sum += dy * h.
template <class R>
MEMBOUND_ALWAYS_INLINE void add_to_weight(typename R::A* weight_sum, Pair<typename R::V> dy,
                                          Pair<typename R::V> h) {
  using V = typename R::V;
  constexpr int kHalf = Lanes<typename R::T>::kStep / 2;
  if constexpr (R::kRoundFirst) h = Lanes<typename R::T>::round(h);
  store(weight_sum, multiply_add(dy.first, h.first, load<V>(weight_sum)));
  store(weight_sum + kHalf, multiply_add(dy.second, h.second, load<V>(weight_sum + kHalf)));
}

// rstd * (g - h * mean) + dsum.
template <class R>
MEMBOUND_ALWAYS_INLINE Pair<typename R::V> gradient(Factors<typename R::V> value,
                                                    typename R::A rstd, typename R::A mean,
                                                    Pair<typename R::V> dsum) {
  using V = typename R::V;
  const V minus_mean = V{} - mean;
  const V first = multiply_add(value.right.first, minus_mean, value.left.first);
  const V second = multiply_add(value.right.second, minus_mean, value.left.second);
  if constexpr (!R::kAdd) return {first * rstd, second * rstd};
  const V factor = V{} + rstd;
  return {multiply_add(first, factor, dsum.first), multiply_add(second, factor, dsum.second)};
}

// A row in blocks, through small buffers where its elements are apart.
template <class R>
struct RowInBlocks {
  using T = typename R::T;
  using A = typename R::A;
  using V = typename R::V;
  using Row = Lanes<T>;
  const RmsNormBackwardRows& rows;
  const T* dy;
  const T* x;
  const T* dsum;
  T* dx;
  A rstd;
  T dy_block[kBlock<T>];
  T x_block[kBlock<T>];
  T dsum_block[kBlock<T>];
  T dx_block[kBlock<T>];

  MEMBOUND_ALWAYS_INLINE const A* weight(std::int64_t first) const {
    return R::kWeight ? static_cast<const A*>(rows.weight) + first : nullptr;
  }
  MEMBOUND_ALWAYS_INLINE Columns<R> read(std::int64_t first, std::int64_t count) {
    return {gather(dy, rows.dy_col_stride, first, count, dy_block),
            gather(x, rows.x_col_stride, first, count, x_block), weight(first), rstd};
  }

  A mean() {
    BlockSum<A> total;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      total.add(sum_of_block<T>(read(first, count), 0, count));
    });
    return total.value() / static_cast<A>(rows.cols);
  }

  void write([[maybe_unused]] A mean) {
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const Columns<R> block = read(first, count);
      [[maybe_unused]] const T* added = nullptr;
      if constexpr (R::kAdd) added = gather(dsum, rows.dsum_col_stride, first, count, dsum_block);
      for (std::int64_t i = 0; i < count; i += Row::kStep) {
        const std::int64_t some = count - i < Row::kStep ? count - i : Row::kStep;
        const auto value = some == Row::kStep ? block.whole(i) : block.partial(i, some);
        if constexpr (R::kDweight) {
          add_to_weight<R>(static_cast<A*>(rows.weight_sum) + first + i,
                           read_partial(block.dy + i, some), value.right);
        }
        if constexpr (R::kDx) {
          Pair<V> more{};
          if constexpr (R::kAdd) more = read_partial(added + i, some);
          write_partial(dx_block + i, gradient<R>(value, rstd, mean, more), some);
        }
      }
      if constexpr (R::kDx) scatter(dx, rows.dx_col_stride, first, count, dx_block);
    });
  }
};

// The payload of a NaN is dropped: rounding to bfloat16 relies on a lower half of zeros.
template <class A>
MEMBOUND_ALWAYS_INLINE A plain_nan(A value) {
  return value == value ? value : static_cast<A>(__builtin_nanf(""));
}

template <class R>
void run(const RmsNormBackwardRows& rows) {
  using T = typename R::T;
  using A = typename R::A;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    RowInBlocks<R> blocks{
        rows,
        static_cast<const T*>(rows.dy) + row * rows.dy_row_stride,
        static_cast<const T*>(rows.x) + row * rows.x_row_stride,
        R::kAdd ? static_cast<const T*>(rows.dsum) + row * rows.dsum_row_stride : nullptr,
        R::kDx ? static_cast<T*>(rows.dx) + row * rows.dx_row_stride : nullptr,
        plain_nan(static_cast<const A*>(rows.rstd)[row * rows.rstd_row_stride]),
        {},
        {},
        {},
        {}};
    blocks.write(R::kDx ? blocks.mean() : A{});
  }
}

template <class T, bool kDx, bool kDweight, bool kAdd>
void run_weighted(const RmsNormBackwardRows& rows) {
  if constexpr (!kDweight) {
    rows.weight != nullptr ? run<Recipe<T, kDx, false, true, kAdd, false>>(rows)
                           : run<Recipe<T, kDx, false, false, kAdd, false>>(rows);
  } else {
    // Rounding to x's dtype first changes nothing where sums have that dtype.
    if constexpr (sizeof(T) == 2) {
      if (rows.round_before_weight) return run<Recipe<T, kDx, true, true, kAdd, true>>(rows);
    }
    run<Recipe<T, kDx, true, true, kAdd, false>>(rows);
  }
}

template <class T>
void run_wanted(const RmsNormBackwardRows& rows) {
  const bool adds = rows.dsum != nullptr;
  if (rows.dx == nullptr) return run_weighted<T, false, true, false>(rows);
  if (rows.weight_sum == nullptr) {
    return adds ? run_weighted<T, true, false, true>(rows)
                : run_weighted<T, true, false, false>(rows);
  }
  adds ? run_weighted<T, true, true, true>(rows) : run_weighted<T, true, true, false>(rows);
}

template <class T>
void join_block(const RmsNormBackwardBlock& block) {
  using Row = Lanes<T>;
  using A = typename Row::A;
  constexpr std::int64_t kHalf = Row::kStep / 2;
  const auto* sums = static_cast<const A*>(block.weight_sum);
  for (std::int64_t col = 0; col < block.cols; col += Row::kStep) {
    const std::int64_t count = block.cols - col < Row::kStep ? block.cols - col : Row::kStep;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = Row::kEvenOdd ? i / 2 + i % 2 * kHalf : i;
      const double sum = sums[col + at];
      block.total[col + i] = block.first ? sum : block.total[col + i] + sum;
    }
  }
}

MEMBOUND_ALWAYS_INLINE void narrow(double value, double* to) { *to = value; }
MEMBOUND_ALWAYS_INLINE void narrow(double value, float* to) { *to = static_cast<float>(value); }
template <class W>
MEMBOUND_ALWAYS_INLINE void narrow(double value, W* to) {
  Pair<typename Lanes<W>::V> one{};
  one.first[0] = plain_nan(static_cast<float>(value));
  write_partial(to, one, 1);
}

template <class W>
void write_weight(const RmsNormBackwardWeight& weight) {
  constexpr std::int64_t kColumns = 64;
  for (std::int64_t first = 0; first < weight.cols; first += kColumns) {
    const std::int64_t count = weight.cols - first < kColumns ? weight.cols - first : kColumns;
    double sums[kColumns] = {};
    for (std::int64_t total = 0; total < weight.count; ++total) {
      const double* from = weight.totals + total * weight.cols + first;
      for (std::int64_t i = 0; i < count; ++i) sums[i] += from[i];
    }
    for (std::int64_t i = 0; i < count; ++i) {
      W* to = static_cast<W*>(weight.dweight) + (first + i) * weight.stride;
      narrow(weight.accumulate ? sums[i] + widen(*to) : sums[i], to);
    }
  }
}

}  // namespace

void rms_norm_backward(const RmsNormBackwardRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return run_wanted<Float16>(rows);
    case DType::kBFloat16: return run_wanted<BFloat16>(rows);
    case DType::kFloat32: return run_wanted<float>(rows);
    default: return run_wanted<double>(rows);
  }
}

void rms_norm_backward_block(const RmsNormBackwardBlock& block) {
  switch (block.dtype) {
    case DType::kFloat16: return join_block<Float16>(block);
    case DType::kBFloat16: return join_block<BFloat16>(block);
    case DType::kFloat32: return join_block<float>(block);
    default: return join_block<double>(block);
  }
}

void rms_norm_backward_weight(const RmsNormBackwardWeight& weight) {
  switch (weight.dtype) {
    case DType::kFloat16: return write_weight<Float16>(weight);
    case DType::kBFloat16: return write_weight<BFloat16>(weight);
    case DType::kFloat32: return write_weight<float>(weight);
    default: return write_weight<double>(weight);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
