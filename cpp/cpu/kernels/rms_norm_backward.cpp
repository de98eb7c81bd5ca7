// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_backward.hpp"

#include "cpu/kernels/rms_norm_backward_rows.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Rows that share one reading of weight and weight_sum, as long as they and the next ones fit the
// second cache.
constexpr int kGroup = kVectorBytes >= 32 ? 4 : 1;
constexpr std::int64_t kGroupBytes = 256 << 10;

// Later rows are asked for one half while summing, one half while writing, so that memory never
// idles; short ones all while writing, as there the sum is too quick to notice.
constexpr std::int64_t kHalvesFrom = 4 << 10;

// The payload of a NaN is dropped: rounding to bfloat16 relies on a lower half of zeros.
template <class A>
MEMBOUND_ALWAYS_INLINE A plain_nan(A value) {
  return value == value ? value : static_cast<A>(__builtin_nanf(""));
}

// Rows from `first` on. What the loops need is copied: stores could alias rows, for all the
// compiler knows.
template <class R, int kRows>
MEMBOUND_ALWAYS_INLINE Group<R, kRows> group_at(const RmsNormBackwardRows& rows,
                                                std::int64_t first) {
  using T = typename R::T;
  using A = typename R::A;
  Group<R, kRows> group;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + i;
    group.dy[i] = static_cast<const T*>(rows.dy) + row * rows.dy_row_stride;
    group.x[i] = static_cast<const T*>(rows.x) + row * rows.x_row_stride;
    group.rstd[i] = plain_nan(static_cast<const A*>(rows.rstd)[row * rows.rstd_row_stride]);
    if constexpr (R::kAdd) {
      group.dsum[i] = static_cast<const T*>(rows.dsum) + row * rows.dsum_row_stride;
    }
    if constexpr (R::kDx) group.dx[i] = static_cast<T*>(rows.dx) + row * rows.dx_row_stride;
  }
  group.weight = static_cast<const A*>(rows.weight);
  group.weight_sum = static_cast<A*>(rows.weight_sum);
  return group;
}

// Both passes over kRows contiguous rows, while rows from `ahead` on are asked for.
template <class R, int kRows>
void run_group(const RmsNormBackwardRows& rows, std::int64_t first, std::int64_t ahead,
               bool around_cache) {
  using T = typename R::T;
  constexpr std::int64_t kSize = sizeof(T);
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const auto group = group_at<R, kRows>(rows, first);
  const auto next = group_at<R, kRows>(rows, ahead);
  const std::int64_t cols = rows.cols;
  const bool asks = rows.ask_ahead;
  const std::int64_t early = !R::kDx ? 1 : cols * kSize < kHalvesFrom ? 0 : 2;
  std::int64_t asked = 0;
  typename R::A means[kRows];
  sum_pass(group, cols, means, [&](std::int64_t col) {
    if (!asks || early == 0) return;
    const std::int64_t until = col * kSize / early;
    next.template ask<2>(asked, until);
    asked = until;
  });
  if constexpr (R::kDx) {
    const std::int64_t bytes = kStep * kSize / (early == 0 ? 1 : 2);
    const auto write = [&]<bool kAroundCache>() {
      std::int64_t col = 0;
      for (; col + kStep <= cols; col += kStep, asked += bytes) {
        if (asks) next.template ask<2>(asked, asked + bytes);
        group.template write_step<kAroundCache>(col, means);
      }
      if (col < cols) group.write_partial_step(col, cols - col, means);
    };
    around_cache ? write.template operator()<true>() : write.template operator()<false>();
  }
}

template <class R>
void run_contiguous(const RmsNormBackwardRows& rows, bool around_cache) {
  const std::int64_t row_bytes = rows.cols * static_cast<std::int64_t>(sizeof(typename R::T));
  const std::int64_t known = rows.rows + rows.rows_behind;
  std::int64_t row = 0;
  if (2 * kGroup * row_bytes <= kGroupBytes) {
    for (; row + kGroup <= rows.rows; row += kGroup) {
      run_group<R, kGroup>(rows, row, row + 2 * kGroup <= known ? row + kGroup : row, around_cache);
    }
  }
  for (; row < rows.rows; ++row) {
    run_group<R, 1>(rows, row, row + 2 <= known ? row + 1 : row, around_cache);
  }
  if (around_cache) stream_fence();
}

template <class R>
void run(const RmsNormBackwardRows& rows) {
  using T = typename R::T;
  const bool contiguous = rows.dy_col_stride == 1 && rows.x_col_stride == 1 &&
                          (!R::kAdd || rows.dsum_col_stride == 1) &&
                          (!R::kDx || rows.dx_col_stride == 1);
  if (!contiguous) {
    for (std::int64_t row = 0; row < rows.rows; ++row) {
      RowInBlocks<R>{rows, group_at<R, 1>(rows, row), {}, {}, {}, {}}.run();
    }
  } else {
    run_contiguous<R>(rows,
                      R::kDx && rows.bypass_cache && on_lines<T>(rows.dx, rows.dx_row_stride));
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

template <class A>
void join_block(const RmsNormBackwardBlock& block) {
  const auto* sums = static_cast<const A*>(block.weight_sum);
  const std::int64_t count = block.cols + kPreparedPadding;
  if (block.first) {
    for (std::int64_t i = 0; i < count; ++i) block.total[i] = sums[i];
  } else {
    for (std::int64_t i = 0; i < count; ++i) block.total[i] += sums[i];
  }
}

// `count` numbers in sequence to elements of W that may be apart.
constexpr std::int64_t kColumns = 64;
MEMBOUND_ALWAYS_INLINE void narrow(const double* from, double* to) {
  for (std::int64_t i = 0; i < kColumns; ++i) to[i] = from[i];
}
MEMBOUND_ALWAYS_INLINE void narrow(const double* from, float* to) {
  for (std::int64_t i = 0; i < kColumns; ++i) to[i] = static_cast<float>(from[i]);
}
template <class W>
MEMBOUND_ALWAYS_INLINE void narrow(const double* from, W* to) {
  using Row = Lanes<W>;
  using V = typename Row::V;
  float single[kColumns];
  narrow(from, single);
  for (std::int64_t i = 0; i < kColumns; ++i) single[i] = plain_nan(single[i]);
  for (std::int64_t i = 0; i < kColumns; i += Row::kStep) {
    Pair<V> value{load<V>(single + i), load<V>(single + i + Row::kStep / 2)};
    if constexpr (Row::kEvenOdd) value = deinterleave(value);
    Row::write(to + i, value);
  }
}

// From the order of the kernel for rows of bfloat16 into sequence.
MEMBOUND_ALWAYS_INLINE void bring_into_sequence(double* sums) {
  constexpr std::int64_t kHalf = Lanes<BFloat16>::kStep / 2;
  double order[kColumns];
  for (std::int64_t step = 0; step < kColumns; step += 2 * kHalf) {
    for (std::int64_t i = 0; i < kHalf; ++i) {
      order[step + 2 * i] = sums[step + i];
      order[step + 2 * i + 1] = sums[step + kHalf + i];
    }
  }
  __builtin_memcpy(sums, order, sizeof(order));
}

template <class W>
void write_weight(const RmsNormBackwardWeight& weight) {
  static_assert(kColumns % Lanes<BFloat16>::kStep == 0 && kPreparedPadding >= kColumns);
  const std::int64_t total_size = weight.cols + kPreparedPadding;
  for (std::int64_t first = 0; first < weight.cols; first += kColumns) {
    const std::int64_t count = weight.cols - first < kColumns ? weight.cols - first : kColumns;
    double sums[kColumns] = {};
    for (std::int64_t total = 0; total < weight.count; ++total) {
      const double* from = weight.totals + total * total_size + first;
      for (std::int64_t i = 0; i < kColumns; ++i) sums[i] += from[i];
    }
    if (weight.x_dtype == DType::kBFloat16) bring_into_sequence(sums);
    W* to = static_cast<W*>(weight.dweight) + first * weight.stride;
    if (weight.accumulate) {
      for (std::int64_t i = 0; i < count; ++i) sums[i] += widen(to[i * weight.stride]);
    }
    W results[kColumns];
    narrow(sums, results);
    for (std::int64_t i = 0; i < count; ++i) to[i * weight.stride] = results[i];
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
  block.dtype == DType::kFloat64 ? join_block<double>(block) : join_block<float>(block);
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
