// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_backward.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

std::array<MatrixArgument, 3> fields_of(SoftmaxBackwardRows& rows) {
  return {matrix_field(rows.dy, rows.dy_row_stride, rows.dy_col_stride),
          matrix_field(rows.y, rows.y_row_stride, rows.y_col_stride),
          matrix_field(rows.dx, rows.dx_row_stride, rows.dx_col_stride)};
}

}  // namespace

void softmax_backward(const SoftmaxBackwardProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const DType dtype = problem.dtype;
  SoftmaxBackwardRows shared{};
  shared.dtype = dtype;
  shared.scale = problem.scale;
  shared.cols = problem.cols;
  shared.dy_row_stride = row_stride(problem.dy_rows);
  shared.dy_col_stride = problem.dy_col_stride;
  shared.y_row_stride = row_stride(problem.y_rows);
  shared.y_col_stride = problem.y_col_stride;
  shared.dx_row_stride = row_stride(problem.dx_rows);
  shared.dx_col_stride = problem.dx_col_stride;
  const std::int64_t row_bytes = 3 * problem.cols * static_cast<std::int64_t>(dtype_size(dtype));
  // All three matrices count, as two do elsewhere. Not for in-place calls: those lines are in the
  // cache already.
  shared.bypass_cache = problem.dx != problem.dy && problem.dx != problem.y &&
                        pays_to_bypass_cache(problem.rows * row_bytes / 2);
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    SoftmaxBackwardRows rows = shared;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.rows = last - row;
      seek_row(rows.dy, problem.dy, problem.dy_rows, dtype, row, rows.rows);
      seek_row(rows.y, problem.y, problem.y_rows, dtype, row, rows.rows);
      seek_row(rows.dx, problem.dx, problem.dx_rows, dtype, row, rows.rows);
      run_tiled_transpose(
          rows, fields_of, [](auto&, auto&, std::int64_t) {}, table.softmax_backward);
    }
  });
}

}  // namespace membound::cpu
