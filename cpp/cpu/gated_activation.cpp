// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/gated_activation.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/isa.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

// What all rows share. Each run sets row pointers and the number of rows.
GatedActivationRows shared_part(const GatedActivationProblem& problem) {
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  GatedActivationRows rows{};
  rows.dtype = problem.dtype;
  rows.numbers = numbers_of(problem.options, problem.dtype, problem.up != nullptr,
                            problem.row_scale != nullptr);
  rows.gate_row_stride = row_stride(problem.gate_rows);
  rows.gate_col_stride = problem.gate_col_stride;
  rows.out_row_stride = row_stride(problem.out_rows);
  rows.out_col_stride = problem.out_col_stride;
  if (problem.up != nullptr) {
    rows.up_row_stride = row_stride(problem.up_rows);
    rows.up_col_stride = problem.up_col_stride;
  }
  if (problem.row_scale != nullptr) rows.row_scale_row_stride = row_stride(problem.row_scale_rows);
  // Not for in-place calls: those lines are in the cache already.
  rows.bypass_cache = problem.out != problem.gate && problem.out != problem.up &&
                      pays_to_bypass_cache(problem.rows * problem.cols * size *
                                           (problem.up != nullptr ? 3 : 2) / 2);
  rows.prefetch_distance = prefetch_distance(problem.rows * problem.cols * size);
  return rows;
}

std::array<MatrixArgument, 3> fields_of(GatedActivationRows& rows) {
  return {matrix_field(rows.gate, rows.gate_row_stride, rows.gate_col_stride),
          matrix_field(rows.up, rows.up_row_stride, rows.up_col_stride),
          matrix_field(rows.out, rows.out_row_stride, rows.out_col_stride)};
}

}  // namespace

void gated_activation(const GatedActivationProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const GatedActivationRows shared = shared_part(problem);
  const DType dtype = problem.dtype;
  const std::int64_t row_bytes =
      (problem.up ? 3 : 2) * problem.cols * static_cast<std::int64_t>(dtype_size(dtype));
  each_segment(problem.rows, problem.cols, row_bytes,
               [&](std::int64_t row, std::int64_t count, std::int64_t col, std::int64_t cols) {
                 GatedActivationRows rows = shared;
                 rows.cols = cols;
                 const void *gate = problem.gate, *up = problem.up, *scale = problem.row_scale;
                 seek_row(rows.gate, gate, problem.gate_rows, dtype, row, count);
                 seek_row(rows.up, up, problem.up_rows, dtype, row, count);
                 seek_row(rows.out, problem.out, problem.out_rows, dtype, row, count);
                 seek_row(rows.row_scale, scale, problem.row_scale_rows, accumulate_dtype(dtype),
                          row, count);
                 seek_column(rows.gate, rows.gate_col_stride, dtype, col);
                 seek_column(rows.up, rows.up_col_stride, dtype, col);
                 seek_column(rows.out, rows.out_col_stride, dtype, col);
                 rows.rows = count;
                 run_tiled_transpose(rows, fields_of, seek_row_scale<GatedActivationRows>,
                                     table.gated_activation);
                 return count;
               });
}

}  // namespace membound::cpu
