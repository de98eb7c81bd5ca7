// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"

// How the CPU back ends of element-wise arithmetic share out rows and columns.
namespace membound::cpu {

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

// Moves on to column `col` of the row that seek_row selected.
template <class Pointer>
void seek_column(Pointer& data, std::int64_t col_stride, DType dtype, std::int64_t col) {
  using Byte =
      std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (data == nullptr) return;
  data = static_cast<Byte*>(data) + col * col_stride * static_cast<std::int64_t>(dtype_size(dtype));
}

}  // namespace membound::cpu
