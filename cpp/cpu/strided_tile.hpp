// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/row.hpp"

// Strided matrices, in tiles that are copied to contiguous buffers and back.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Copies `count` elements (at most a step) where both pointers are given.
template <class T>
MEMBOUND_ALWAYS_INLINE void copy_some(const T* from, T* to, std::int64_t count) {
  if (from != nullptr && to != nullptr) __builtin_memcpy(to, from, count * sizeof(T));
}

// A strided matrix of some rows. Tiles of it hold up to kBlock elements, row by row.
template <class T>
struct Strided {
  T* data;  // null: none
  std::int64_t row_stride, col_stride;

  MEMBOUND_ALWAYS_INLINE T* row(std::int64_t at) const {
    return data == nullptr ? nullptr : data + at * row_stride;
  }
  MEMBOUND_ALWAYS_INLINE bool is_strided() const { return data != nullptr && col_stride != 1; }
  // Elements of a column are closer in memory than those of a row.
  MEMBOUND_ALWAYS_INLINE bool is_transposed() const {
    return is_strided() && __builtin_llabs(row_stride) < __builtin_llabs(col_stride);
  }
};

struct TileSize {
  std::int64_t rows, cols;
};
// A tile of a transposed matrix is at most 64 columns wide, so that it uses more than one element
// of each cache line in both directions.
template <class T>
MEMBOUND_ALWAYS_INLINE TileSize tile_size(std::int64_t cols, bool transposed) {
  constexpr std::int64_t kTransposedCols = 64;
  const std::int64_t widest = transposed ? kTransposedCols : kBlock<T>;
  const std::int64_t width = cols < widest ? cols : widest;
  return {kBlock<T> / width, width};
}

// Rows so narrow that most of their elements fall into the last, partial step.
template <class T>
MEMBOUND_ALWAYS_INLINE bool is_narrow(std::int64_t cols) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  return cols < 4 * kStep && cols % kStep != 0;
}

// Calls body(row, rows, col, cols) for every tile.
template <class Body>
MEMBOUND_ALWAYS_INLINE void each_tile(std::int64_t rows, std::int64_t cols, TileSize size,
                                      Body body) {
  for (std::int64_t row = 0; row < rows; row += size.rows) {
    const std::int64_t some_rows = rows - row < size.rows ? rows - row : size.rows;
    for (std::int64_t col = 0; col < cols; col += size.cols)
      body(row, some_rows, col, cols - col < size.cols ? cols - col : size.cols);
  }
}

// Visits a tile in memory order: one(r, c) per element, or whole_row(r) where rows are contiguous.
template <class T, class Rows, class One>
MEMBOUND_ALWAYS_INLINE void visit_elements(const Strided<T>& matrix, std::int64_t rows,
                                           std::int64_t cols, Rows whole_row, One one) {
  constexpr std::int64_t kCalled = 8;  // narrower rows are not worth a call
  if (matrix.is_transposed()) {
    for (std::int64_t c = 0; c < cols; ++c) {
      for (std::int64_t r = 0; r < rows; ++r) one(r, c);
    }
  } else if (matrix.col_stride == 1 && cols >= kCalled) {
    for (std::int64_t r = 0; r < rows; ++r) whole_row(r);
  } else {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) one(r, c);
    }
  }
}

template <class T>
[[gnu::noinline]] const T* gather_tile(const Strided<const T>& from, std::int64_t row,
                                       std::int64_t rows, std::int64_t col, std::int64_t cols,
                                       T* copy) {
  if (from.data == nullptr) return nullptr;
  const T* first = from.row(row) + col * from.col_stride;
  visit_elements(
      from, rows, cols,
      [=](std::int64_t r) {
        __builtin_memcpy(copy + r * cols, first + r * from.row_stride, cols * sizeof(T));
      },
      [=](std::int64_t r, std::int64_t c) {
        copy[r * cols + c] = first[r * from.row_stride + c * from.col_stride];
      });
  return copy;
}

template <class T>
[[gnu::noinline]] void scatter_tile(const Strided<T>& to, std::int64_t row, std::int64_t rows,
                                    std::int64_t col, std::int64_t cols, const T* copy) {
  if (to.data == nullptr) return;
  T* first = to.row(row) + col * to.col_stride;
  visit_elements(
      to, rows, cols,
      [=](std::int64_t r) {
        __builtin_memcpy(first + r * to.row_stride, copy + r * cols, cols * sizeof(T));
      },
      [=](std::int64_t r, std::int64_t c) {
        first[r * to.row_stride + c * to.col_stride] = copy[r * cols + c];
      });
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
