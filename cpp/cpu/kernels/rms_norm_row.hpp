// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/rms_norm.hpp"
#include "cpu/row.hpp"
#include "cpu/weight.hpp"

// Rows of RMSNorm, centred or not: their pointers, how they are written, and rows with strided
// columns. The caller supplies the arithmetic as finish(value, col, count).
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Rows per group: their sums share one vectorised square root and division, which hides its
// latency.
constexpr int kGroup = 16;

MEMBOUND_ALWAYS_INLINE std::int64_t rows_of_group(std::int64_t row_bytes, std::int64_t bytes) {
  return row_bytes * kGroup <= bytes ? kGroup : row_bytes * 2 > bytes ? 1 : bytes / row_bytes;
}

// A constant trip count lets the compiler vectorise a full group.
template <class Body>
MEMBOUND_ALWAYS_INLINE void each_of_group(std::int64_t count, Body body) {
  if (count == kGroup) {
    for (int i = 0; i < kGroup; ++i) body(i);
  } else {
    for (std::int64_t i = 0; i < count; ++i) body(i);
  }
}

// How later rows are prefetched with non-temporal stores. Between these sizes: a part while
// summing, the rest while writing, into L2, so that memory never idles (0.69 -> 0.79 of copy
// speed). Other rows: all while writing.
constexpr std::int64_t kPartsFrom = 4 << 10;
constexpr std::int64_t kPartsTo = 256 << 10;

MEMBOUND_ALWAYS_INLINE bool prefetches_in_parts(std::int64_t row_bytes) {
  return row_bytes >= kPartsFrom && row_bytes <= kPartsTo;
}

MEMBOUND_ALWAYS_INLINE float square_root(float value) { return __builtin_sqrtf(value); }
MEMBOUND_ALWAYS_INLINE double square_root(double value) { return __builtin_sqrt(value); }

MEMBOUND_ALWAYS_INLINE float power_of_two(int exponent, float) {
  return bit_copy<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}
MEMBOUND_ALWAYS_INLINE double power_of_two(int exponent, double) {
  return bit_copy<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

template <class A>
MEMBOUND_ALWAYS_INLINE bool is_in_safe_range(const RmsNormRows& rows, A sum) {
  return sum >= static_cast<A>(rows.safe_low) && sum <= static_cast<A>(rows.safe_high);
}

template <class A>
MEMBOUND_ALWAYS_INLINE void store_statistic(void* to, std::int64_t stride, std::int64_t row,
                                            A value) {
  if (to != nullptr) static_cast<A*>(to)[row * stride] = value;
}

// Output pointers of a row; sum only with a residual.
template <class T>
struct OutputRow {
  T* out;
  T* sum;
};

template <class T, bool kAdd>
struct RowsOf {
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

  MEMBOUND_ALWAYS_INLINE InputRow<T, kAdd> input(std::int64_t row) const {
    if constexpr (kAdd) {
      return {x + row * x_stride, residual + row * residual_stride};
    } else {
      return {x + row * x_stride};
    }
  }
  MEMBOUND_ALWAYS_INLINE OutputRow<T> output(std::int64_t row) const {
    return {out + row * out_stride, kAdd ? sum + row * sum_stride : nullptr};
  }
};

// How rows are accessed. kPrefetch: rows that no cache holds, also for in-place calls. kStrided:
// columns that are not contiguous.
enum class Memory { kCached, kPrefetch, kPrefetchNonTemporal, kStrided };

// The usual width of an attention head, as a compile-time trip count (5 % faster).
constexpr std::int64_t kHead = 128;
template <bool kAdd, Memory kMemory>
constexpr bool kUnrollsHeads = !kAdd && kMemory != Memory::kPrefetch && kVectorBytes >= 32;

// Rows with non-temporal stores start in the middle of a step, at the first line-aligned element of
// out; the sum must be aligned there too. A weight in even/odd order cannot start in mid-step.
template <class T>
MEMBOUND_ALWAYS_INLINE bool have_equal_line_offsets(const RmsNormRows& rows) {
  const auto offset = reinterpret_cast<std::uintptr_t>(rows.out) -
                      reinterpret_cast<std::uintptr_t>(rows.residual_out);
  const std::int64_t further = rows.out_row_stride - rows.residual_out_row_stride;
  return offset % kLine == 0 && further * static_cast<std::int64_t>(sizeof(T)) % kLine == 0;
}
template <class T, bool kAdd>
MEMBOUND_ALWAYS_INLINE Memory memory_of(const RmsNormRows& rows, bool weight_in_order) {
  if (rows.x_col_stride != 1 || rows.out_col_stride != 1) return Memory::kStrided;
  if (kAdd && (rows.residual_col_stride != 1 || rows.residual_out_col_stride != 1))
    return Memory::kStrided;
  const bool fits = weight_in_order || are_line_aligned<T>(rows.out, rows.out_row_stride);
  const bool sum_fits = !kAdd || have_equal_line_offsets<T>(rows);
  if (rows.bypass_cache && fits && sum_fits) return Memory::kPrefetchNonTemporal;
  return rows.prefetch_ahead ? Memory::kPrefetch : Memory::kCached;
}

// A contiguous row to be written. `upcoming`, a later row or none, is prefetched line by line; its
// results go to `upcoming_output`.
template <class T, bool kAdd, class Finish>
struct WrittenRow {
  InputRow<T, kAdd> input;
  OutputRow<T> output;
  Finish finish;
  InputRow<T, kAdd> upcoming;
  OutputRow<T> upcoming_output;

  MEMBOUND_ALWAYS_INLINE void write_some(std::int64_t col, std::int64_t count) const {
    const auto value = input.partial(col, count);
    if constexpr (kAdd) write_partial(output.sum + col, value, count);
    write_partial(output.out + col, finish(value, col, count), count);
  }
};

// Prefetches the part of `upcoming`, a later row, that belongs to the `bytes` bytes from `byte` on.
// kPrefetched: sixteenths of it that were prefetched before.
template <int kPrefetched, class Input>
MEMBOUND_ALWAYS_INLINE void prefetch_while_writing(const Input& upcoming, std::int64_t row_bytes,
                                                   std::int64_t byte, std::int64_t bytes) {
  if (prefetches_in_parts(row_bytes)) {
    const std::int64_t from = (row_bytes * kPrefetched + byte * (16 - kPrefetched)) / 16;
    upcoming.template prefetch<2>(from, from + bytes * (16 - kPrefetched) / 16);
  } else {
    upcoming.template prefetch<3>(byte, byte + bytes);
  }
}

// Writes kRows rows at once, which share reads of the parameters; non-temporal rows one at a time.
template <Memory kMemory, int kRows, class T, bool kAdd, class Finish>
MEMBOUND_ALWAYS_INLINE void write_rows(const WrittenRow<T, kAdd, Finish> (&rows)[kRows],
                                       std::int64_t cols) {
  using Row = Lanes<T>;
  constexpr bool kNonTemporal = kMemory == Memory::kPrefetchNonTemporal;
  constexpr std::int64_t kSize = sizeof(T);
  static_assert(kRows == 1 || !kNonTemporal);
  const auto past =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(rows[0].output.out) % kLine);
  std::int64_t col = 0;
  if constexpr (kNonTemporal) {
    prefetch_shared_line(rows[0].upcoming_output.out);
    if constexpr (kAdd) prefetch_shared_line(rows[0].upcoming_output.sum);
  }
  if (kNonTemporal && past != 0) {
    const std::int64_t head = (kLine - past) / kSize;
    col = head < cols ? head : cols;
    for (std::int64_t at = 0; at < col; at += Row::kStep)
      rows[0].write_some(at, col - at < Row::kStep ? col - at : Row::kStep);
  }
  const std::int64_t end = kNonTemporal ? cols - Row::kStep + 1 : cols / Row::kStep * Row::kStep;
  const bool prefetches = kNonTemporal || rows[0].upcoming.x != nullptr;
  // Rows that are prefetched run upwards, in the direction of the prefetches.
  const bool down =
      !prefetches && writes_downwards(rows[0].input.x, rows[0].output.out, cols * kSize);
  const std::int64_t by = down ? -Row::kStep : Row::kStep;
  for (std::int64_t at = down ? end - Row::kStep : col; col < end; col += Row::kStep, at += by) {
    Pair<typename Row::V> values[kRows], results[kRows];
#pragma GCC unroll 2
    for (int row = 0; row < kRows; ++row) {
      if (kMemory != Memory::kCached && prefetches) {
        prefetch_while_writing<Finish::kPrefetched>(rows[row].upcoming, cols * kSize, col * kSize,
                                                    Row::kStep * kSize);
      }
      values[row] = rows[row].input.whole(at);
      results[row] = rows[row].finish(values[row], at, Row::kStep);
    }
#pragma GCC unroll 2
    for (int row = 0; row < kRows; ++row) {
      const OutputRow<T>& output = rows[row].output;
      if constexpr (kNonTemporal) {
        if constexpr (kAdd) Row::write_non_temporal(output.sum + at, values[row]);
        Row::write_non_temporal(output.out + at, results[row]);
      } else {
        if constexpr (kAdd) Row::write(output.sum + at, values[row]);
        Row::write(output.out + at, results[row]);
      }
    }
  }
  if (col >= cols) return;
  for (const auto& row : rows) row.write_some(col, cols - col);
}

// The largest magnitude among `count` elements, at least `found`.
template <class T, class Input>
MEMBOUND_ALWAYS_INLINE double largest_of(const Input& input, std::int64_t count, double found) {
  using A = typename Lanes<T>::A;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  for (std::int64_t i = 0; i < count; i += kStep) {
    A values[kStep];
    const auto value = input.partial(i, count - i < kStep ? count - i : kStep);
    store(values, value.first);
    store(values + kStep / 2, value.second);
    for (const A one : values) {
      const double magnitude = __builtin_fabs(one);
      found = magnitude > found ? magnitude : found;
    }
  }
  return found;
}

// rstd of values times `scale`, which is 1 or, where plain sums are out of range, a power of two.
template <class A>
struct SafeRstd {
  A scale, rstd;
  MEMBOUND_ALWAYS_INLINE A unscaled() const {
    return static_cast<A>(static_cast<double>(rstd) * static_cast<double>(scale));
  }
};
// sum(scale): the sum of squares of the scaled values; largest(): the largest magnitude.
template <class A, class Sum, class Largest>
MEMBOUND_ALWAYS_INLINE SafeRstd<A> safe_rstd(const RmsNormRows& rows, Sum sum, Largest largest) {
  const A plain = sum(A{1});
  if (is_in_safe_range(rows, plain))
    return {1, 1 / square_root(plain / static_cast<A>(rows.cols) + static_cast<A>(rows.eps))};
  const A scale = power_of_two(rows.safe_exponent(largest(), rows.eps), A{});
  const double mean = static_cast<double>(sum(scale)) / static_cast<double>(rows.cols);
  return {scale, static_cast<A>(1 / square_root(mean + rows.eps * scale * scale))};
}

// A row with any column strides, in blocks through small buffers.
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

  RowInBlocks(const RmsNormRows& all, std::int64_t row)
      : rows(all),
        input(RowsOf<T, kAdd>(all).input(row)),
        output(RowsOf<T, kAdd>(all).output(row)) {}

  MEMBOUND_ALWAYS_INLINE Input read(std::int64_t first, std::int64_t count) {
    const T* x = gather(input.x, rows.x_col_stride, first, count, x_block);
    if constexpr (kAdd) {
      return {x, gather(input.residual, rows.residual_col_stride, first, count, residual_block)};
    } else {
      return {x};
    }
  }

  // Scatters the buffered results of a block.
  MEMBOUND_ALWAYS_INLINE void write_back(std::int64_t first, std::int64_t count) {
    scatter(output.out, rows.out_col_stride, first, count, out_block);
    if constexpr (kAdd) {
      scatter(output.sum, rows.residual_out_col_stride, first, count, sum_block);
    }
  }

  // Not inlined: independent of the recipe.
  [[gnu::noinline]] double largest() {
    double found = 0;
    each_block<T>(rows.cols, [&](std::int64_t first, std::int64_t count) {
      found = largest_of<T>(read(first, count), count, found);
    });
    return found;
  }

  // The factor for values whose plain sums are out of range.
  MEMBOUND_ALWAYS_INLINE A safe_scale() {
    return power_of_two(rows.safe_exponent(largest(), rows.eps), A{});
  }
};

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
