// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_backward.hpp"

#include "cpu/kernels/rms_norm_backward_rows.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Rows that share one reading of weight and weight_sum: two short ones, which the second pass finds
// in the first cache (16384 x 512 float32: 44 GB/s, four 28), four longer ones as long as they and
// the next four fit the second (2048 x 4096 float32: 25.5 GB/s, two 24.0). Narrow vectors are too
// few registers for more than one.
constexpr int kMostRows = kVectorBytes >= 32 ? 4 : 1;
constexpr int kShortRows = kVectorBytes >= 32 ? 2 : 1;
constexpr std::int64_t kLongFrom = 4 << 10;
constexpr std::int64_t kGroupBytes = 256 << 10;

// Later rows are asked for one quarter while summing, the rest while writing, so that memory reads
// and writes at once (2048 x 4096 float32: 27.0 GB/s with one half, 30.2 with a quarter); short
// rows all while writing, some way ahead, and heads not at all (65536 x 128 float32: 32 and 37
// GB/s).
constexpr std::int64_t kAskedFrom = 1 << 10;
constexpr std::int64_t kAheadBytes = 8 << 10;

// The payload of a NaN is dropped: rounding to bfloat16 relies on a lower half of zeros.
template <class A>
MEMBOUND_ALWAYS_INLINE A plain_nan(A value) {
  return value == value ? value : static_cast<A>(__builtin_nanf(""));
}

template <class T>
MEMBOUND_ALWAYS_INLINE const T* row_of(const void* data, std::int64_t stride, std::int64_t row) {
  return data == nullptr ? nullptr : static_cast<const T*>(data) + row * stride;
}

// What a call computes, as far as the compiler should know.
template <class S, bool kAdd>
struct Kernel {
  using T = typename S::T;
  using A = typename Lanes<T>::A;
  using Gradient = GradientRow<T, S::kWeight, kAdd>;
  static constexpr std::int64_t kSize = sizeof(T);
  const RmsNormBackwardRows& rows;

  template <int kRows>
  Group<T, kRows> group_at(std::int64_t first) const {
    Group<T, kRows> group;
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + i;
      group.dy[i] = row_of<T>(rows.dy, rows.dy_row_stride, row);
      group.x[i] = row_of<T>(rows.x, rows.x_row_stride, row);
      group.dsum[i] = row_of<T>(rows.dsum, rows.dsum_row_stride, row);
      group.dx[i] = const_cast<T*>(row_of<T>(rows.dx, rows.dx_row_stride, row));
      group.rstd[i] = plain_nan(*row_of<A>(rows.rstd, rows.rstd_row_stride, row));
    }
    group.weight = static_cast<const A*>(rows.weight);
    group.weight_sum = static_cast<A*>(rows.weight_sum);
    return group;
  }

  // `count` rows behind those from `first` on, where there are as many.
  Ahead<T> ahead_of(std::int64_t first, int count) const {
    Ahead<T> ahead{};
    const std::int64_t groups = kAheadBytes / (rows.cols * kSize * count);
    first += (groups > 1 ? groups : 1) * count;
    const bool asks = rows.ask_ahead && rows.cols * kSize >= kAskedFrom;
    if (!asks || first + count > rows.rows + rows.rows_behind) return ahead;
    for (int i = 0; i < count; ++i) {
      const std::int64_t row = first + i;
      ahead.dy[i] = row_of<T>(rows.dy, rows.dy_row_stride, row);
      ahead.x[i] = row_of<T>(rows.x, rows.x_row_stride, row);
      ahead.dsum[i] = row_of<T>(rows.dsum, rows.dsum_row_stride, row);
    }
    ahead.rows = count;
    const bool in_writing = kSize == 2 || rows.cols * kSize < kLongFrom;
    ahead.early = rows.dx == nullptr ? kSize : in_writing ? 0 : kSize / 4;
    ahead.late = kSize - ahead.early;
    return ahead;
  }

  template <int kRows>
  Gradient gradient(const Group<T, kRows>& group, int i, A dot) const {
    return {group.dy[i],
            group.x[i],
            group.dsum[i],
            group.dx[i],
            group.weight,
            group.rstd[i],
            dot / static_cast<A>(rows.cols)};
  }

  template <int kRows>
  void run_group(std::int64_t first, bool around_cache) const {
    const auto group = group_at<kRows>(first);
    const Ahead<T> ahead = ahead_of(first, kRows);
    A dots[kRows];
    sum_pass<S>(group, rows.cols, dots, ahead);
    if constexpr (S::kDot) {
      Gradient gradients[kRows];
      for (int i = 0; i < kRows; ++i) gradients[i] = gradient(group, i, dots[i]);
      write_pass(gradients, kRows, rows.cols, around_cache, ahead);
    }
  }

  // The first row that is left.
  template <int kRows>
  std::int64_t run_groups(std::int64_t row, bool around_cache) const {
    for (; row + kRows <= rows.rows; row += kRows) run_group<kRows>(row, around_cache);
    return row;
  }

  void run_contiguous() const {
    const bool around_cache =
        S::kDot && rows.bypass_cache && on_lines<T>(rows.dx, rows.dx_row_stride);
    const std::int64_t row_bytes = rows.cols * kSize;
    std::int64_t row = 0;
    if (row_bytes < kLongFrom) {
      row = run_groups<kShortRows>(row, around_cache);
    } else if (2 * kMostRows * row_bytes <= kGroupBytes) {
      row = run_groups<kMostRows>(row, around_cache);
    }
    run_groups<1>(row, around_cache);
    if (around_cache) stream_fence();
  }

  // A row whose elements are apart, in blocks through small buffers.
  void run_in_blocks(std::int64_t row) const {
    T dy_block[kBlock<T>], x_block[kBlock<T>], dsum_block[kBlock<T>], dx_block[kBlock<T>];
    const auto whole = group_at<1>(row);
    const auto read = [&](std::int64_t first, std::int64_t count) {
      auto block = whole;
      block.dy[0] = gather(whole.dy[0], rows.dy_col_stride, first, count, dy_block);
      block.x[0] = gather(whole.x[0], rows.x_col_stride, first, count, x_block);
      if (kAdd)
        block.dsum[0] = gather(whole.dsum[0], rows.dsum_col_stride, first, count, dsum_block);
      block.dx[0] = dx_block;
      if (S::kWeight) block.weight += first;
      if (S::kDweight) block.weight_sum += first;
      return block;
    };
    BlockSum<A> dot;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      A part{};
      sum_pass<S>(read(first, count), count, &part, Ahead<T>{});
      dot.add(part);
    });
    if constexpr (!S::kDot) return;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      const Gradient block = gradient(read(first, count), 0, dot.value());
      write_pass(&block, 1, count, false, Ahead<T>{});
      scatter(whole.dx[0], rows.dx_col_stride, first, count, dx_block);
    });
  }

  void run() const {
    const bool contiguous = rows.dy_col_stride == 1 && rows.x_col_stride == 1 &&
                            (!kAdd || rows.dsum_col_stride == 1) &&
                            (!S::kDot || rows.dx_col_stride == 1);
    if (contiguous) return run_contiguous();
    for (std::int64_t row = 0; row < rows.rows; ++row) run_in_blocks(row);
  }
};

template <class S>
void run_added(const RmsNormBackwardRows& rows) {
  rows.dsum != nullptr ? Kernel<S, true>{rows}.run() : Kernel<S, false>{rows}.run();
}

template <class T, bool kRoundFirst>
void run_rounded(const RmsNormBackwardRows& rows) {
  if (rows.dx == nullptr) return Kernel<Sums<T, false, true, true, kRoundFirst>, false>{rows}.run();
  run_added<Sums<T, true, true, true, kRoundFirst>>(rows);
}

template <class T>
void run_wanted(const RmsNormBackwardRows& rows) {
  if (rows.weight == nullptr) return run_added<Sums<T, true, false, false, false>>(rows);
  if (rows.weight_sum == nullptr) return run_added<Sums<T, true, false, true, false>>(rows);
  // Rounding to x's dtype first changes nothing where sums have that dtype.
  if constexpr (sizeof(T) == 2) {
    if (rows.round_before_weight) return run_rounded<T, true>(rows);
  }
  run_rounded<T, false>(rows);
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
    if (weight.stride == 1) {
      __builtin_memcpy(to, results, count * sizeof(W));
    } else {
      for (std::int64_t i = 0; i < count; ++i) to[i * weight.stride] = results[i];
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
