// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/gated_activation.hpp"
#include "cpu/row.hpp"
#include "cpu/tanh.hpp"

// What the forward and the backward of gated activations share per row.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The factor of the activation: up, clamped or capped, plus its offset; 1 without up. The row scale
// is applied elsewhere.
template <class T, bool kPlain>
struct UpRow {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  const ActivationNumbers* numbers;
  const T* up;

  MEMBOUND_ALWAYS_INLINE Pair<V> read(std::int64_t col) const {
    if (!kPlain && up == nullptr) return {V{} + 1, V{} + 1};
    return Lanes<T>::read(up + col);
  }
  MEMBOUND_ALWAYS_INLINE V factor(V value) const {
    if (kPlain || up == nullptr) return value;
    const V limit = V{} + static_cast<A>(numbers->limit),
            offset = V{} + static_cast<A>(numbers->up_offset);
    if (numbers->up_cap > 0) return capped(value).value * static_cast<A>(numbers->up_cap) + offset;
    return at_most(at_least(value, -limit), limit) + offset;
  }
  // The gradient of up, from that of the factor.
  MEMBOUND_ALWAYS_INLINE V slope(V value, V gradient) const {
    const V limit = V{} + static_cast<A>(numbers->limit);
    if (numbers->up_cap > 0) return gradient * capped(value).slope;
    return value > limit ? V{} : value < -limit ? V{} : gradient;
  }

 private:
  MEMBOUND_ALWAYS_INLINE Tanh<V> capped(V value) const {
    return tanh_of<A>(value / static_cast<A>(numbers->up_cap));
  }
};

template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A row_scale_of(const void* row_scale, std::int64_t stride,
                                                         std::int64_t row) {
  using A = typename Lanes<T>::A;
  return row_scale == nullptr ? A{1} : static_cast<const A*>(row_scale)[row * stride];
}

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

// Calls body(first, count, row) for the rows of a tile, `first` being the offset in its copy.
// Without row scales one call covers the whole tile.
template <class Body>
MEMBOUND_ALWAYS_INLINE void each_row_of_tile(std::int64_t row, std::int64_t rows, std::int64_t cols,
                                             bool one_scale, Body body) {
  const std::int64_t together = one_scale ? rows : 1;
  for (std::int64_t r = 0; r < rows; r += together) body(r * cols, together * cols, row + r);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
