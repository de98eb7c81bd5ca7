// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm_backward_steps.hpp"

// The backward of groups of rows, and of rows with strided columns.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Rows per group, which share one read of weight and weight_sum: two short rows, so that the second
// pass finds them in L1; four longer ones if they and the next four fit L2; four rows of one step,
// whose cost per group outweighs the rest. Without 32-byte vectors there are too few registers for
// more than one row.
constexpr int kMostRows = kVectorBytes >= 32 ? 4 : 1;
constexpr int kShortRows = kVectorBytes >= 32 ? 2 : 1;
constexpr std::int64_t kLongFrom = 4 << 10;
constexpr std::int64_t kGroupBytes = 256 << 10;

// Later rows are prefetched for one quarter while summing and the rest while writing, so that
// memory reads and writes overlap. Short rows are prefetched while writing alone, several groups
// ahead; rows below kPrefetchFromBytes not at all.
constexpr std::int64_t kPrefetchFromBytes = 1 << 10;
constexpr std::int64_t kPrefetchAheadBytes = 8 << 10;

// Row pointers and statistics of the rows from `first` on.
template <class T, int kRows, bool kCentred>
MEMBOUND_ALWAYS_INLINE Group<T, kRows> group_at(const RmsNormBackwardRows& rows,
                                                std::int64_t first) {
  using A = typename Lanes<T>::A;
  Group<T, kRows> group;
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + i;
    group.dy[i] = row_of<T>(rows.dy, rows.dy_row_stride, row);
    group.x[i] = row_of<T>(rows.x, rows.x_row_stride, row);
    group.dsum[i] = row_of<T>(rows.dsum, rows.dsum_row_stride, row);
    group.dx[i] = const_cast<T*>(row_of<T>(rows.dx, rows.dx_row_stride, row));
    if constexpr (kCentred)
      group.mean[i] = plain_nan(*row_of<A>(rows.mean, rows.mean_row_stride, row));
    group.rstd[i] = plain_nan(*row_of<A>(rows.rstd, rows.rstd_row_stride, row));
  }
  group.weight = static_cast<const A*>(rows.weight);
  group.weight_sum = static_cast<A*>(rows.weight_sum);
  group.bias_sum = static_cast<A*>(rows.bias_sum);
  return group;
}

// The prefetch pointers of `count` rows, at least one group after those from `first` on; none at
// the end.
template <class T>
MEMBOUND_ALWAYS_INLINE PrefetchRows<T> prefetch_rows_of(const RmsNormBackwardRows& rows,
                                                        std::int64_t first, int count) {
  constexpr std::int64_t kSize = sizeof(T);
  PrefetchRows<T> upcoming{};
  const std::int64_t groups = kPrefetchAheadBytes / (rows.cols * kSize * count);
  first += (groups > 1 ? groups : 1) * count;
  const bool prefetches = rows.prefetch_ahead && rows.cols * kSize >= kPrefetchFromBytes;
  if (!prefetches || first + count > rows.rows + rows.following_rows) return upcoming;
  for (int i = 0; i < count; ++i) {
    const std::int64_t row = first + i;
    upcoming.dy[i] = row_of<T>(rows.dy, rows.dy_row_stride, row);
    upcoming.x[i] = row_of<T>(rows.x, rows.x_row_stride, row);
    upcoming.dsum[i] = row_of<T>(rows.dsum, rows.dsum_row_stride, row);
    upcoming.dx[i] = row_of<T>(rows.dx, rows.dx_row_stride, row);
  }
  upcoming.rows = count;
  const bool in_writing = kSize == 2 || rows.cols * kSize < kLongFrom;
  upcoming.bytes_per_summed = rows.dx == nullptr ? kSize : in_writing ? 0 : kSize / 4;
  upcoming.bytes_per_written = kSize - upcoming.bytes_per_summed;
  return upcoming;
}

// The compile-time parameters of a call.
template <class S, bool kAdd>
struct Kernel {
  using T = typename S::T;
  using A = typename Lanes<T>::A;
  using Gradient = GradientRow<T, kAdd, S::kCentred>;
  static constexpr std::int64_t kSize = sizeof(T);
  const RmsNormBackwardRows& rows;

  // Fills in row i of a group. sums: those of g * h of all rows, then those of g. Field by field:
  // copying the struct would wait for the stores of its fields.
  template <int kRows>
  MEMBOUND_ALWAYS_INLINE void set(Gradient& row, const Group<T, kRows>& group, int i,
                                  const A* sums) const {
    const A width = static_cast<A>(rows.cols);
    row.dy = group.dy[i];
    row.x = group.x[i];
    row.dsum = group.dsum[i];
    row.dx = group.dx[i];
    row.weight = group.weight;
    row.rstd = group.rstd[i];
    row.mean_gh = sums[i] / width;
    if constexpr (S::kCentred) row.mean = group.mean[i];
    if constexpr (S::kCentred) row.mean_g = sums[kRows + i] / width;
  }

  template <int kRows>
  void run_group(std::int64_t first, bool non_temporal) const {
    const auto group = group_at<T, kRows, S::kCentred>(rows, first);
    const PrefetchRows<T> upcoming = prefetch_rows_of<T>(rows, first, kRows);
    A sums[GradientTerms<S, kRows>::kSums];
    sum_pass<S>(group, rows.cols, sums, upcoming);
    if constexpr (S::kDot) {
      Gradient gradients[kRows];
      for (int i = 0; i < kRows; ++i) set(gradients[i], group, i, sums);
      write_pass(gradients, kRows, rows.cols, non_temporal, upcoming);
    }
  }

  // Only column sums gain much from grouping, and each group size costs an instantiation: float64
  // rows, and dweight alone, are read one by one. The bits do not depend on it.
  static constexpr bool kGeneric = sizeof(T) == 8 || !S::kDot;
  static constexpr int kMost = kGeneric ? 1 : S::kDweight ? kMostRows : kShortRows;
  // If one row's lanes fit registers and two rows' do not, lane stores clog the store queue behind
  // non-temporal ones (8.5 -> 4.9 ms with one row). If none fit, short rows use cached stores.
  template <int kRows>
  static constexpr bool kInRegisters =
      2 * GradientTerms<S, kRows>::kSums * kPairs<T> <= kLaneRegisters;
  static constexpr bool kOneByOne = kInRegisters<1> && !kInRegisters<kShortRows>;
  static constexpr int kShort = kGeneric || kOneByOne ? 1 : kShortRows;
  static constexpr bool kShortNonTemporal = kLaneRegisters == 0 || kInRegisters<kShort>;

  // Returns the first row left.
  template <int kRows>
  std::int64_t run_groups(std::int64_t row, bool non_temporal) const {
    for (; row + kRows <= rows.rows; row += kRows) run_group<kRows>(row, non_temporal);
    return row;
  }

  // Rows of so few steps that a kernel keeps them in registers.
  template <int kSteps>
  bool run_in_registers() const {
    if constexpr (kSteps <= register_steps<S>()) {
      if (rows.cols <= kSteps * Lanes<T>::kStep) {
        RegisterRows<S, kAdd, kSteps>(rows).run();
        return true;
      }
      return run_in_registers<kSteps + 1>();
    }
    return false;
  }

  void run_contiguous() const {
    const std::int64_t row_bytes = rows.cols * kSize;
    // Prepared weights are read in whole steps from the row's start, so with them non-temporal rows
    // must be line-aligned.
    const bool is_long = row_bytes >= kPrefetchFromBytes;
    const bool fits = are_line_aligned<T>(rows.dx, rows.dx_row_stride)
                          ? kShortNonTemporal || is_long
                          : kSize > 2 && is_long;
    const bool non_temporal = S::kDot && rows.bypass_cache && fits;
    if (!non_temporal && run_in_registers<1>()) return;
    std::int64_t row = 0;
    if (rows.cols > Lanes<T>::kStep && row_bytes < kLongFrom) {
      row = run_groups<kShort>(row, non_temporal);
    } else if (2 * kMostRows * row_bytes <= kGroupBytes) {
      row = run_groups<kMost>(row, non_temporal);
    }
    run_groups<1>(row, non_temporal);
    if (non_temporal) stream_fence();
  }

  // A row with strided columns, in blocks through small buffers.
  void run_in_blocks(std::int64_t row) const {
    T dy_block[kBlock<T>], x_block[kBlock<T>], dsum_block[kBlock<T>], dx_block[kBlock<T>];
    const auto whole = group_at<T, 1, S::kCentred>(rows, row);
    const auto read = [&](std::int64_t first, std::int64_t count) {
      auto block = whole;
      block.dy[0] = gather(whole.dy[0], rows.dy_col_stride, first, count, dy_block);
      block.x[0] = gather(whole.x[0], rows.x_col_stride, first, count, x_block);
      if (kAdd)
        block.dsum[0] = gather(whole.dsum[0], rows.dsum_col_stride, first, count, dsum_block);
      block.dx[0] = dx_block;
      block.weight += first;
      if (S::kDweight) block.weight_sum += first;
      if (S::kDweight && S::kCentred) block.bias_sum += first;
      return block;
    };
    constexpr int kSums = GradientTerms<S, 1>::kSums;
    BlockSum<A> totals[kSums];
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      A parts[kSums] = {};
      sum_pass<S>(read(first, count), count, parts, PrefetchRows<T>{});
      for (int i = 0; i < kSums; ++i) totals[i].add(parts[i]);
    });
    if constexpr (!S::kDot) return;
    A sums[kSums];
    for (int i = 0; i < kSums; ++i) sums[i] = totals[i].value();
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      Gradient block;
      set(block, read(first, count), 0, sums);
      write_pass(&block, 1, count, false, PrefetchRows<T>{});
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

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
