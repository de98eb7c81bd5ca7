// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

// What all rows share. Each run sets row pointers, the number of rows and what they keep.
SoftmaxRows shared_part(const SoftmaxProblem& problem) {
  SoftmaxRows rows{};
  rows.dtype = problem.dtype;
  rows.mask_dtype = problem.mask_dtype;
  rows.scale = problem.scale;
  rows.cols = problem.cols;
  rows.x_row_stride = row_stride(problem.x_rows);
  rows.x_col_stride = problem.x_col_stride;
  rows.out_row_stride = row_stride(problem.out_rows);
  rows.out_col_stride = problem.out_col_stride;
  if (problem.mask != nullptr) rows.mask_row_stride = row_stride(problem.mask_rows);
  rows.mask_col_stride = problem.mask_col_stride;
  rows.first_unmasked = problem.cols;
  const std::int64_t bytes =
      problem.rows * problem.cols * static_cast<std::int64_t>(dtype_size(problem.dtype));
  // Not for in-place calls: those lines are in the cache already.
  rows.bypass_cache = problem.out != problem.x && pays_to_bypass_cache(bytes);
  rows.prefetch_ahead = prefetch_distance(bytes) != 0;
  return rows;
}

std::array<MatrixArgument, 2> fields_of(SoftmaxRows& rows) {
  return {matrix_field(rows.x, rows.x_row_stride, rows.x_col_stride),
          matrix_field(rows.out, rows.out_row_stride, rows.out_col_stride)};
}

}  // namespace

void softmax(const SoftmaxProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const SoftmaxRows shared = shared_part(problem);
  const std::int64_t row_bytes =
      2 * problem.cols * static_cast<std::int64_t>(dtype_size(problem.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    SoftmaxRows rows = shared;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.rows = last - row;
      seek_row(rows.x, problem.x, problem.x_rows, problem.dtype, row, rows.rows);
      seek_row(rows.mask, problem.mask, problem.mask_rows, problem.mask_dtype, row, rows.rows);
      seek_row(rows.out, problem.out, problem.out_rows, problem.dtype, row, rows.rows);
      if (problem.queries != 0) {
        const std::int64_t query = row % problem.queries;
        rows.rows = std::min(rows.rows, problem.queries - query);
        rows.first_unmasked = query + problem.causal_offset + 1;
        rows.unmasked_step = 1;
      }
      run_tiled_transpose(
          rows, fields_of,
          [](SoftmaxRows& part, const SoftmaxRows& all, std::int64_t at) {
            part.first_unmasked = all.first_unmasked + at * all.unmasked_step;
            part.mask = offset_pointer(all.mask, at * all.mask_row_stride, all.mask_dtype);
          },
          table.softmax);
    }
  });
}

}  // namespace membound::cpu
