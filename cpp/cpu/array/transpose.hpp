// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "cpu/array/blocks.hpp"
#include "cpu/parallel.hpp"

// Copies between arrays whose memory runs along different dimensions, in tiles that are contiguous
// in both.
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
        tile_cols_(std::min(cols_, widest_tile() / size_)),
        is_direct_(problem.result.dtype == problem.source.dtype &&
                   problem.result.strides[last_] == 1),
        tile_rows_(std::min(rows_, (is_direct_ ? kRunBytes : kLine) / size_)),
        first_row_(first_row()),
        row_tiles_((rows_ - first_row_ + tile_rows_ - 1) / tile_rows_),
        col_tiles_((cols_ + tile_cols_ - 1) / tile_cols_) {
    for (int at = 0; at < last_; ++at) {
      if (at == axis) continue;
      outer_.shape[outer_.rank] = problem.dims.shape[at];
      source_strides_[outer_.rank] = problem.source.strides[at];
      result_strides_[outer_.rank++] = problem.result.strides[at];
    }
  }

  void run() const {
    constexpr std::int64_t kBytesPerPart = 128 << 10;
    const std::int64_t tiles_per_part = kBytesPerPart / (tile_rows_ * tile_cols_ * size_) + 1;
    parallel_for(outer_.size() * col_tiles_ * row_tiles_, tiles_per_part,
                 [&](std::int64_t first, std::int64_t last) {
                   alignas(64) char buffer[kTransposeBytes];
                   for (std::int64_t tile = first; tile < last; ++tile) copy_tile(tile, buffer);
                   if (non_temporal_) fence_stores();
                 });
  }

 private:
  // Contiguous bytes of a tile: in the source; in the result, more where rows are few.
  static constexpr std::int64_t kRunBytes = 1024, kWidthBytes = 256, kLine = 64;

  std::int64_t widest_tile() const {
    return std::max(kWidthBytes, kTransposeBytes / 4 / std::min(rows_, kLine / size_));
  }

  // At most 0: where the first tile begins, so that others begin with a cache line of the source.
  std::int64_t first_row() const {
    if (rows_ <= tile_rows_ || problem_.source.strides[axis_] != 1) return 0;
    return -static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(problem_.source.data) %
                                      kLine) /
           size_;
  }

  // Neighbouring tiles read on where the last one stopped. Offsets count elements.
  struct Tile {
    std::int64_t rows, cols, from, to;
  };
  Tile tile_at(std::int64_t tile) const {
    const std::int64_t begin = first_row_ + tile % row_tiles_ * tile_rows_;
    const std::int64_t end = std::min(begin + tile_rows_, rows_);
    const std::int64_t row = std::max<std::int64_t>(begin, 0);
    const std::int64_t col = tile / row_tiles_ % col_tiles_ * tile_cols_;
    const auto [source, result] = std::pair(problem_.source.strides, problem_.result.strides);
    Tile found{end - row, std::min(tile_cols_, cols_ - col),
               row * source[axis_] + col * source[last_],
               row * result[axis_] + col * result[last_]};
    std::int64_t outer = tile / row_tiles_ / col_tiles_;
    for (int at = outer_.rank - 1; at >= 0; --at) {
      found.from += outer % outer_.shape[at] * source_strides_[at];
      found.to += outer % outer_.shape[at] * result_strides_[at];
      outer /= outer_.shape[at];
    }
    return found;
  }

  void copy_tile(std::int64_t tile, char* buffer) const {
    const auto [rows, cols, from, to] = tile_at(tile);
    const char* data = static_cast<const char*>(problem_.source.data);
    const char *source = data + from * size_, *next = data + tile_at(tile + 1).from * size_;
    ArrayTranspose part{source,
                        next,
                        buffer,
                        size_,
                        rows,
                        cols,
                        problem_.source.strides[axis_],
                        problem_.source.strides[last_],
                        tile_cols_,
                        false};
    const ArrayOperand& result = problem_.result;
    if (is_direct_) {
      part.to = static_cast<char*>(result.data) + to * size_;
      part.to_stride = result.strides[axis_];
      part.non_temporal = non_temporal_;
    }
    table_.array_transpose(part);
    if (!is_direct_) write_tile(buffer, to, rows, cols);
  }

  // result[row, col] = buffer[row][col], converted.
  void write_tile(const char* buffer, std::int64_t to, std::int64_t rows, std::int64_t cols) const {
    const ArrayOperand& result = problem_.result;
    const std::int64_t bytes = size_in_bytes(result.dtype), row_stride = result.strides[axis_];
    char* place = static_cast<char*>(result.data) + to * bytes;
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
  const std::int64_t size_, rows_, cols_, tile_cols_;
  const bool is_direct_;
  const std::int64_t tile_rows_, first_row_, row_tiles_, col_tiles_;
  ArrayDims outer_;
  std::int64_t source_strides_[kMaxRank], result_strides_[kMaxRank];
};

}  // namespace membound::cpu
