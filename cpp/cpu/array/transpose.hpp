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
        tile_cols_(std::min(cols_, kTileBytes / std::min(rows_ * size_, run_bytes()))),
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
                   if (non_temporal_) fence_stores();
                 });
  }

 private:
  static constexpr std::int64_t kTileBytes = 16 << 10, kLine = 64;

  // Of the source in a tile, which is a square of bytes or of float32.
  std::int64_t run_bytes() const { return std::min<std::int64_t>(256, 128 * size_); }

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
    write_tile(buffer, to, rows, cols);
  }

  // buffer[row][col] = source[row, col]
  template <class T>
  void read_tile(const T* source, std::int64_t rows, std::int64_t cols, T* buffer) const {
    constexpr std::int64_t kSide = RegisterTile<T>::kTileSide;
    const std::int64_t row_stride = problem_.source.strides[axis_];
    const std::int64_t col_stride = problem_.source.strides[last_];
    const std::int64_t whole_rows = row_stride == 1 ? rows / kSide * kSide : 0;
    const std::int64_t whole_cols = row_stride == 1 ? cols / kSide * kSide : 0;
    for (std::int64_t col = 0; col < whole_cols; col += kSide) {
      for (std::int64_t at = col; at < col + kSide; ++at)
        prefetch_column(source, rows, cols, col_stride, at);
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
  // The column some places on, or one of the next tile, whose rows follow this one's. Not further:
  // columns whose stride is a power of two share few sets of the cache.
  template <class T>
  static void prefetch_column(const T* source, std::int64_t rows, std::int64_t cols,
                              std::int64_t col_stride, std::int64_t col) {
    constexpr std::int64_t kAhead = std::max(8, RegisterTile<T>::kTileSide);
    const std::int64_t at = col + kAhead;
    const T* column = source + (at < cols ? at * col_stride : (at - cols) * col_stride + rows);
    for (std::int64_t row = 0; row < rows; row += kLine / std::int64_t{sizeof(T)})
      __builtin_prefetch(column + row);
  }

  // result[row, col] = buffer[row][col], converted.
  void write_tile(const char* buffer, std::int64_t to, std::int64_t rows, std::int64_t cols) const {
    const ArrayOperand& result = problem_.result;
    const std::int64_t bytes = size_in_bytes(result.dtype), row_stride = result.strides[axis_];
    char* place = static_cast<char*>(result.data) + to * bytes;
    if (result.dtype == problem_.source.dtype && result.strides[last_] == 1) {
      return table_.array_store({buffer, place, cols * bytes, non_temporal_, rows,
                                 tile_cols_ * bytes, row_stride * bytes});
    }
    BlockMemory converted;
    const std::int64_t most = kBlockBytes / bytes;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; col += most) {
        const std::int64_t count = std::min(most, cols - col);
        const char* values = buffer + (row * tile_cols_ + col) * size_;
        if (result.dtype != problem_.source.dtype) {
          table_.array_convert(
              {values, converted.bytes, problem_.source.dtype, result.dtype, count});
          values = converted.bytes;
        }
        write_strided(values, place + (row * row_stride + col * result.strides[last_]) * bytes,
                      count);
      }
    }
  }
  void write_strided(const char* values, char* to, std::int64_t count) const {
    const std::int64_t stride = problem_.result.strides[last_];
    with_bytes(size_in_bytes(problem_.result.dtype), [&]<class T>(T) {
      for (std::int64_t i = 0; i < count; ++i)
        reinterpret_cast<T*>(to)[i * stride] = reinterpret_cast<const T*>(values)[i];
    });
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
