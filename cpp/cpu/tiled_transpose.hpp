// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <tuple>
#include <utility>

#include "membound/device_buffer.hpp"
#include "membound/dtype.hpp"

// Tiled transpose for matrices whose columns are contiguous. Read row by row, each element would
// use a cache line of its own; instead, some rows at a time pass through a buffer that is filled in
// memory order.
namespace membound::cpu {

// A matrix among a kernel's arguments.
struct MatrixArgument {
  const void** data;
  std::int64_t* row_stride;
  std::int64_t* col_stride;
  bool is_written;
  bool is_codes = false;  // elements are bytes, whatever the dtype of the rows

  bool is_transposed() const {
    return *data != nullptr && *col_stride != 1 && std::abs(*row_stride) < std::abs(*col_stride);
  }
};
inline MatrixArgument matrix_field(const void*& data, std::int64_t& row_stride,
                                   std::int64_t& col_stride) {
  return {&data, &row_stride, &col_stride, false};
}
inline MatrixArgument matrix_field(void*& data, std::int64_t& row_stride,
                                   std::int64_t& col_stride) {
  return {const_cast<const void**>(&data), &row_stride, &col_stride, true};
}
inline MatrixArgument codes_field(void*& data, std::int64_t& row_stride, std::int64_t& col_stride) {
  return {const_cast<const void**>(&data), &row_stride, &col_stride, true, true};
}

// A square tile of elements, transposed in registers; its side is what 16 bytes hold.
template <class T>
class RegisterTile {
  using Line [[gnu::vector_size(16)]] = T;

 public:
  static constexpr int kTileSide = 16 / static_cast<int>(sizeof(T));

  // Copies rows of `from` to columns of `to`; strides between rows.
  static void transpose(const T* from, std::int64_t from_stride, T* to, std::int64_t to_stride) {
    Line lines[kTileSide];
    for (int i = 0; i < kTileSide; ++i)
      std::memcpy(&lines[i], from + i * from_stride, sizeof(Line));
    for (int merged_rows = 1; merged_rows < kTileSide; merged_rows *= 2) {
      Line merged[kTileSide];
      for (int i = 0; i < kTileSide / 2; ++i) {
        merged[2 * i] = merge<0>(lines[i], lines[i + kTileSide / 2], kIndices);
        merged[2 * i + 1] = merge<kTileSide / 2>(lines[i], lines[i + kTileSide / 2], kIndices);
      }
      std::copy_n(merged, kTileSide, lines);
    }
    for (int i = 0; i < kTileSide; ++i) std::memcpy(to + i * to_stride, &lines[i], sizeof(Line));
  }

 private:
  static constexpr std::make_integer_sequence<int, kTileSide> kIndices{};
  // Interleaves elements from kFirst on of a and b.
  template <int kFirst, int... kAt>
  static Line merge(Line a, Line b, std::integer_sequence<int, kAt...>) {
    return __builtin_shufflevector(a, b, (kFirst + kAt / 2 + kAt % 2 * kTileSide)...);
  }
};

// The buffers of all transposed matrices of a call, which share one width.
class TransposedRows {
 public:
  TransposedRows(DType dtype, std::int64_t cols)
      : size_(static_cast<std::int64_t>(dtype_size(dtype))), cols_(cols) {}

  // Whole cache lines of each column, as many rows as half of a 1 MiB L2 cache holds.
  std::int64_t rows_per_pass() const {
    const std::int64_t of_line = kLine / size_;
    return std::clamp(kBytes / (cols_ * size_) / of_line * of_line, of_line, kMost);
  }
  bool pays(std::int64_t rows) const { return rows >= kFew && cols_ * size_ <= kWidest; }

  // A buffer for at most `rows` rows of a matrix.
  DeviceBuffer buffer(const MatrixArgument& matrix, std::int64_t rows) const {
    const std::int64_t bytes = std::min(rows_per_pass(), rows) * stride(matrix) * size_of(matrix);
    return DeviceBuffer(static_cast<std::size_t>(bytes), Device::cpu());
  }
  // An odd number of cache lines: rows would otherwise map to one set of the L1 cache.
  std::int64_t stride(const MatrixArgument& matrix) const {
    return ((cols_ * size_of(matrix) / kLine + 1) | 1) * kLine / size_of(matrix);
  }

  // Copies `count` rows of a matrix to its buffer, or back.
  template <bool kBack>
  void copy(const MatrixArgument& matrix, void* buffer, std::int64_t count) const {
    switch (size_of(matrix)) {
      case 1: return copy_as<kBack, std::uint8_t>(matrix, buffer, count);
      case 2: return copy_as<kBack, std::uint16_t>(matrix, buffer, count);
      case 4: return copy_as<kBack, std::uint32_t>(matrix, buffer, count);
      default: return copy_as<kBack, std::uint64_t>(matrix, buffer, count);
    }
  }
  const void* row(const MatrixArgument& matrix, std::int64_t at) const {
    return static_cast<const char*>(*matrix.data) + at * *matrix.row_stride * size_of(matrix);
  }

 private:
  std::int64_t size_of(const MatrixArgument& matrix) const { return matrix.is_codes ? 1 : size_; }

  // Not inlined: it is 8 KB for each op and element size.
  template <bool kBack, class T>
  [[gnu::noinline]] void copy_as(const MatrixArgument& matrix, void* buffer,
                                 std::int64_t count) const {
    auto* const tile = static_cast<T*>(buffer);
    auto* const matrix_data = static_cast<T*>(const_cast<void*>(*matrix.data));
    const std::int64_t row_stride = *matrix.row_stride, col_stride = *matrix.col_stride;
    const std::int64_t stride = this->stride(matrix);
    constexpr std::int64_t kTileSide = RegisterTile<T>::kTileSide;
    const std::int64_t rows = row_stride == 1 ? count / kTileSide * kTileSide : 0;
    const std::int64_t cols = cols_ / kTileSide * kTileSide;
    const auto one = [&](std::int64_t row, std::int64_t col) {
      T& outside = matrix_data[row * row_stride + col * col_stride];
      T& local = tile[row * stride + col];
      kBack ? outside = local : local = outside;
    };
    for (std::int64_t col = 0; col < cols; col += kTileSide) {
      if (rows > 0)
        prefetch_ahead<kBack>(matrix_data + (col + kPrefetch) * col_stride, kTileSide, col_stride,
                              rows);
      for (std::int64_t row = 0; row < rows; row += kTileSide) {
        T* const outside = matrix_data + col * col_stride + row;
        T* const local = tile + row * stride + col;
        kBack ? RegisterTile<T>::transpose(local, stride, outside, col_stride)
              : RegisterTile<T>::transpose(outside, col_stride, local, stride);
      }
      for (std::int64_t of = col; of < col + kTileSide; ++of) {
        for (std::int64_t row = rows; row < count; ++row) one(row, of);
      }
    }
    for (std::int64_t col = cols; col < cols_; ++col) {
      for (std::int64_t row = 0; row < count; ++row) one(row, col);
    }
  }
  // The hardware prefetcher loses track if each column is in another page.
  template <bool kBack, class T>
  static void prefetch_ahead(const T* column, std::int64_t cols, std::int64_t col_stride,
                             std::int64_t rows) {
    for (std::int64_t col = 0; col < cols; ++col, column += col_stride) {
      for (std::int64_t row = 0; row < rows; row += kLine / std::int64_t{sizeof(T)}) {
        __builtin_prefetch(column + row, kBack);
      }
    }
  }

  static constexpr std::int64_t kLine = 64, kBytes = 512 << 10, kMost = 64, kFew = 4;
  // The widest row, of which a buffer of one line per column still pays off.
  static constexpr std::int64_t kWidest = 2 << 20;
  // Prefetch distance in columns; 8 is 10 to 20 % slower, 24 and 32 are no faster.
  static constexpr std::int64_t kPrefetch = 16;
  std::int64_t size_, cols_;
};

// Calls run(part) for all rows, or for buffered groups of them if any matrix is transposed and that
// pays off. `fields_of` lists the matrices of a part; enter(part, rows, first) moves its other
// pointers to its first row.
template <class Rows, class FieldsOf, class Seek, class Run>
void run_tiled_transpose(const Rows& rows, FieldsOf fields_of, Seek seek, Run run) {
  const TransposedRows transposed(rows.dtype, rows.cols);
  if (!transposed.pays(rows.rows)) return run(rows);
  Rows whole = rows;
  const auto from = fields_of(whole);
  constexpr std::size_t kFields = std::tuple_size_v<decltype(fields_of(whole))>;
  const bool any = std::any_of(from.begin(), from.end(),
                               [](const MatrixArgument& field) { return field.is_transposed(); });
  if (!any) return run(rows);
  Rows part = rows;
  const auto to = fields_of(part);
  std::array<DeviceBuffer, kFields> buffers;
  try {
    for (std::size_t i = 0; i < kFields; ++i) {
      if (from[i].is_transposed()) buffers[i] = transposed.buffer(from[i], rows.rows);
    }
  } catch (const std::exception&) {
    return run(rows);  // no memory, and threads of the pool may not throw: slow, but right
  }
  part.bypass_cache = false;
  if constexpr (requires { part.prefetch_ahead; }) part.prefetch_ahead = false;
  for (std::int64_t first = 0; first < rows.rows; first += transposed.rows_per_pass()) {
    part.rows = std::min(transposed.rows_per_pass(), rows.rows - first);
    std::array<const void*, kFields> start;
    for (std::size_t i = 0; i < kFields; ++i) {
      start[i] = *from[i].data == nullptr ? nullptr : transposed.row(from[i], first);
      *to[i].data = start[i];
      if (!from[i].is_transposed()) continue;
      MatrixArgument local = from[i];
      local.data = &start[i];
      if (!local.is_written) transposed.copy<false>(local, buffers[i].data(), part.rows);
      *to[i].data = buffers[i].data();
      *to[i].row_stride = transposed.stride(from[i]);
      *to[i].col_stride = 1;
    }
    seek(part, rows, first);
    run(part);
    for (std::size_t i = 0; i < kFields; ++i) {
      if (!from[i].is_written || !from[i].is_transposed()) continue;
      MatrixArgument local = from[i];
      local.data = &start[i];
      transposed.copy<true>(local, buffers[i].data(), part.rows);
    }
  }
}

}  // namespace membound::cpu
