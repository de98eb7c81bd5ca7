// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>

#include "cpu/array/blocks.hpp"
#include "cpu/parallel.hpp"
#include "cpu/tiled_transpose.hpp"

// Copies between arrays whose memory runs along different dimensions: tiles pass through a buffer,
// so that reads and writes are both contiguous.
namespace membound::cpu {

class TiledCopy {
 public:
  // Along which dimension the source is densest; the last one if the copy is no transpose.
  static int source_axis(const ArrayCopy& problem) {
    const int last = problem.dims.rank - 1;
    int found = last;
    for (int axis = 0; axis < last; ++axis) {
      const std::int64_t stride = std::abs(problem.source.strides[axis]);
      if (stride != 0 && stride < std::abs(problem.source.strides[found])) found = axis;
    }
    return found;
  }

  TiledCopy(const ArrayCopy& problem, int axis, bool non_temporal, const KernelTable& table)
      : problem_(problem),
        table_(table),
        non_temporal_(non_temporal),
        axis_(axis),
        last_(problem.dims.rank - 1),
        size_(size_in_bytes(problem.source.dtype)),
        rows_(problem.dims.shape[axis]),
        cols_(problem.dims.shape[last_]),
        tile_cols_(std::min(cols_, kTileBytes / std::max(kRowBytes, 8 * size_))),
        tile_rows_(std::min(rows_, kTileBytes / size_ / tile_cols_)),
        row_tiles_((rows_ + tile_rows_ - 1) / tile_rows_),
        col_tiles_((cols_ + tile_cols_ - 1) / tile_cols_) {
    for (int at = 0; at < last_; ++at) {
      if (at == axis) continue;
      outer_.shape[outer_.rank] = problem.dims.shape[at];
      source_strides_[outer_.rank] = problem.source.strides[at];
      result_strides_[outer_.rank++] = problem.result.strides[at];
    }
  }

  void run() const {
    constexpr std::int64_t kTilesPerPart = 8;
    parallel_for(outer_.size() * col_tiles_ * row_tiles_, kTilesPerPart,
                 [&](std::int64_t first, std::int64_t last) {
                   alignas(64) char buffer[kTileBytes];
                   for (std::int64_t tile = first; tile < last; ++tile) copy_tile(tile, buffer);
                 });
  }

 private:
  static constexpr std::int64_t kTileBytes = 16 << 10, kRowBytes = 64;

  // Neighbouring tiles read on where the last one stopped.
  void copy_tile(std::int64_t tile, char* buffer) const {
    const std::int64_t row = tile % row_tiles_ * tile_rows_;
    const std::int64_t col = tile / row_tiles_ % col_tiles_ * tile_cols_;
    std::int64_t outer = tile / row_tiles_ / col_tiles_;
    std::int64_t from = row * problem_.source.strides[axis_] + col * problem_.source.strides[last_];
    std::int64_t to = row * problem_.result.strides[axis_] + col * problem_.result.strides[last_];
    for (int at = outer_.rank - 1; at >= 0; --at) {
      from += outer % outer_.shape[at] * source_strides_[at];
      to += outer % outer_.shape[at] * result_strides_[at];
      outer /= outer_.shape[at];
    }
    const std::int64_t rows = std::min(tile_rows_, rows_ - row);
    const std::int64_t cols = std::min(tile_cols_, cols_ - col);
    with_bytes(size_, [&]<class T>(T) {
      read_tile(static_cast<const T*>(problem_.source.data) + from, rows, cols,
                reinterpret_cast<T*>(buffer));
    });
    const bool dense = tile_cols_ == cols_ && problem_.result.strides[axis_] == cols_;
    if (dense && problem_.result.strides[last_] == 1) return write_row(buffer, to, rows * cols);
    for (std::int64_t at = 0; at < rows; ++at)
      write_row(buffer + at * tile_cols_ * size_, to + at * problem_.result.strides[axis_], cols);
  }

  // buffer[row][col] = source[row, col]
  template <class T>
  void read_tile(const T* source, std::int64_t rows, std::int64_t cols, T* buffer) const {
    constexpr std::int64_t kSide = RegisterTile<T>::kTileSide, kAhead = 4;
    const std::int64_t row_stride = problem_.source.strides[axis_];
    const std::int64_t col_stride = problem_.source.strides[last_];
    const std::int64_t whole_rows = row_stride == 1 ? rows / kSide * kSide : 0;
    const std::int64_t whole_cols = row_stride == 1 ? cols / kSide * kSide : 0;
    for (std::int64_t col = 0; col < whole_cols; col += kSide) {
      for (std::int64_t i = 0; i < kSide; ++i)
        __builtin_prefetch(source + (col + kAhead * kSide + i) * col_stride);
      for (std::int64_t row = 0; row < whole_rows; row += kSide) {
        RegisterTile<T>::transpose(source + row + col * col_stride, col_stride,
                                   buffer + row * tile_cols_ + col, tile_cols_);
      }
    }
    for (std::int64_t col = 0; col < cols; ++col) {
      for (std::int64_t row = col < whole_cols ? whole_rows : 0; row < rows; ++row)
        buffer[row * tile_cols_ + col] = source[row * row_stride + col * col_stride];
    }
  }

  void write_row(const char* from, std::int64_t to, std::int64_t count) const {
    const ArrayOperand& result = problem_.result;
    const std::int64_t stride = result.strides[last_];
    char* row = static_cast<char*>(result.data) + to * size_in_bytes(result.dtype);
    BlockMemory converted;
    for (std::int64_t at = 0; at < count;) {
      const std::int64_t part =
          result.dtype == problem_.source.dtype
              ? count
              : std::min(count - at, kBlockBytes / size_in_bytes(result.dtype));
      const char* values = from + at * size_;
      if (result.dtype != problem_.source.dtype) {
        table_.array_convert({values, converted.bytes, problem_.source.dtype, result.dtype, part});
        values = converted.bytes;
      }
      char* place = row + at * stride * size_in_bytes(result.dtype);
      if (stride == 1) {
        table_.array_store({values, place, part * size_in_bytes(result.dtype), non_temporal_});
      } else {
        with_bytes(size_in_bytes(result.dtype), [&]<class T>(T) {
          for (std::int64_t i = 0; i < part; ++i)
            reinterpret_cast<T*>(place)[i * stride] = reinterpret_cast<const T*>(values)[i];
        });
      }
      at += part;
    }
  }

  const ArrayCopy& problem_;
  const KernelTable& table_;
  const bool non_temporal_;
  const int axis_, last_;
  const std::int64_t size_, rows_, cols_, tile_cols_, tile_rows_, row_tiles_, col_tiles_;
  ArrayDims outer_;
  std::int64_t source_strides_[kMaxRank], result_strides_[kMaxRank];
};

}  // namespace membound::cpu
