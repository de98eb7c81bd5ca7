// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "core/quantised.hpp"
#include "cpu/isa.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "membound/device.hpp"

// Rows between the kernel that computes them and the one that quantises them.
namespace membound::cpu {

// Scratch rows of a result before it is quantised: as many as fit half of a 32 KiB L1 cache, where
// the second pass finds them. Rows start at cache lines.
struct QuantScratch {
  QuantScratch(DType dtype, std::int64_t total_rows, std::int64_t cols)
      : dtype(dtype),
        size(static_cast<std::int64_t>(dtype_size(dtype))),
        cols(cols),
        row_stride((cols * size + kLine - 1) / kLine * kLine / size),
        rows(std::clamp<std::int64_t>(kBytes / (row_stride * size), 1, total_rows)) {}

  std::int64_t bytes() const { return rows * row_stride * size; }

  static constexpr std::int64_t kBytes = 16 << 10;
  static constexpr std::int64_t kLine = 64;
  DType dtype;
  std::int64_t size, cols, row_stride, rows;
};

// What all runs of rows share.
inline RmsNormQuantRows quantised_rows(const QuantisedResult& result, const QuantScratch& scratch) {
  RmsNormQuantRows rows{};
  rows.static_scale = result.static_scale;
  rows.dtype = scratch.dtype;
  rows.out_dtype = result.out_dtype;
  rows.cols = scratch.cols;
  rows.group_size = result.group_size;
  rows.y_row_stride = scratch.row_stride;
  rows.out_row_stride = row_stride(result.out_rows);
  rows.out_col_stride = result.out_col_stride;
  rows.scale_row_stride = result.scale ? row_stride(result.scale_rows) : 0;
  rows.scale_col_stride = result.scale_col_stride;
  rows.scale_upper_bound = result.scale_upper_bound;
  return rows;
}

// Moves to the rows from `row` on: at most `count`, fewer where the layout's innermost axis ends.
inline void seek_codes(RmsNormQuantRows& rows, const QuantisedResult& result, std::int64_t row,
                       std::int64_t& count) {
  void* const scale = result.scale;
  seek_row(rows.out, result.out, result.out_rows, result.out_dtype, row, count);
  seek_row(rows.scale, scale, result.scale_rows, DType::kFloat32, row, count);
}

// Splits `total` rows into one part per thread and calls run(y, first, last) with a scratch y of
// its own. row_bytes: all bytes that a row moves.
template <class Run>
void each_part(const QuantScratch& scratch, std::int64_t total, std::int64_t row_bytes, Run run) {
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  const std::int64_t parts = std::clamp<std::int64_t>(total / grain, 1, cpu_threads());
  const DeviceBuffer storage(static_cast<std::size_t>(parts * scratch.bytes()), Device::cpu());
  const auto first_row = [&](std::int64_t part) {
    return total / parts * part + std::min(part, total % parts);
  };
  parallel_for(parts, 1, [&](std::int64_t first, std::int64_t last) {
    void* const y = storage.as<char>() + first * scratch.bytes();
    run(y, first_row(first), first_row(last));
  });
}

}  // namespace membound::cpu
