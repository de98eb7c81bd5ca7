// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>

#include "cpu/kernels/gated_activation.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "ops/gated_activation.hpp"

// What the CPU back ends of gated activations share.
namespace membound::cpu {

inline ActivationNumbers numbers_of(const GatedActivationOptions& options, DType dtype, bool gated,
                                    bool has_row_scale) {
  static_assert(static_cast<int>(ActivationKind::kSitu) == static_cast<int>(Activation::kSitu));
  const bool wide = dtype == DType::kFloat64;
  const double largest = wide ? std::numeric_limits<double>::max()
                              : static_cast<double>(std::numeric_limits<float>::max());
  // Beyond these limits the logistic function is 0 or 1: see cpu/exponential.hpp.
  const double lowest = wide ? -760.0 : -110.0, highest = wide ? 80.0 : 40.0;
  const bool situ = options.kind == Activation::kSitu, caps = situ && options.limit <= largest;
  const double slope = situ ? 1.0 : options.alpha;  // of the logistic function's argument
  return {static_cast<ActivationKind>(options.kind),
          gated && !has_row_scale && options.alpha == 1.0 && options.limit > largest &&
              options.up_offset == 0.0,
          options.alpha,
          situ ? std::numeric_limits<double>::infinity() : options.limit,
          options.up_offset,
          caps ? options.limit : 0.0,
          std::max(lowest / slope, -largest),
          std::min(highest / slope, largest)};
}

// Splits rows x cols among the threads: runs of whole rows, or column ranges of rows that are long.
// body(row, rows, first_col, cols) handles as many of the rows as it can and returns their number.
template <class Body>
void each_segment(std::int64_t rows, std::int64_t cols, std::int64_t row_bytes, Body body) {
  // Column ranges start at cache lines where the rows do.
  constexpr std::int64_t kPart = 16384;
  const std::int64_t parts = row_bytes > 2 * kBytesPerThread ? (cols + kPart - 1) / kPart : 1;
  const std::int64_t segment_bytes = std::max<std::int64_t>(1, row_bytes / parts);
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / segment_bytes);
  parallel_for(rows * parts, grain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t at = first; at < last;) {
      if (parts == 1) {
        at += body(at, last - at, 0, cols);
        continue;
      }
      const std::int64_t row = at / parts, part = at % parts;
      const std::int64_t count = std::min(parts - part, last - at);
      const std::int64_t col = part * kPart;
      body(row, std::int64_t{1}, col, std::min(count * kPart, cols - col));
      at += count;
    }
  });
}

// Moves the row scales of `part` to row `at` of `all`.
template <class Rows>
void seek_row_scale(Rows& part, const Rows& all, std::int64_t at) {
  part.row_scale =
      offset_pointer(all.row_scale, at * all.row_scale_row_stride, accumulate_dtype(all.dtype));
}

// Moves on to column `col` of the row that seek_row selected.
template <class Pointer>
void seek_column(Pointer& data, std::int64_t col_stride, DType dtype, std::int64_t col) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (data == nullptr) return;
  data = static_cast<Byte*>(data) + col * col_stride * static_cast<std::int64_t>(dtype_size(dtype));
}

}  // namespace membound::cpu
