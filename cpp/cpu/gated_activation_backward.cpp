// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_activation_backward.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/gated_activation.hpp"
#include "cpu/isa.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

// Bytes of one row in all matrices.
std::int64_t bytes_of_row(const GatedActivationBackwardProblem& problem) {
  return (problem.up ? 5 : 3) * problem.cols * static_cast<std::int64_t>(dtype_size(problem.dtype));
}

// What all rows share. Each run sets row pointers and the number of rows.
GatedActivationBackwardRows shared_part(const GatedActivationBackwardProblem& problem) {
  GatedActivationBackwardRows rows{};
  rows.dtype = problem.dtype;
  rows.numbers = numbers_of(problem.options, problem.dtype, problem.up != nullptr,
                            problem.row_scale != nullptr);
  const auto take = [](const void* array, const RowLayout& layout, std::int64_t col_stride,
                       std::int64_t& row_stride_to, std::int64_t& col_stride_to) {
    if (array == nullptr) return;
    row_stride_to = row_stride(layout);
    col_stride_to = col_stride;
  };
  take(problem.dy, problem.dy_rows, problem.dy_col_stride, rows.dy_row_stride, rows.dy_col_stride);
  take(problem.gate, problem.gate_rows, problem.gate_col_stride, rows.gate_row_stride,
       rows.gate_col_stride);
  take(problem.up, problem.up_rows, problem.up_col_stride, rows.up_row_stride, rows.up_col_stride);
  take(problem.dgate, problem.dgate_rows, problem.dgate_col_stride, rows.dgate_row_stride,
       rows.dgate_col_stride);
  take(problem.dup, problem.dup_rows, problem.dup_col_stride, rows.dup_row_stride,
       rows.dup_col_stride);
  if (problem.row_scale != nullptr) rows.row_scale_row_stride = row_stride(problem.row_scale_rows);
  // Not for in-place calls: those lines are in the cache already.
  const auto was_read = [&](const void* result) {
    return result != nullptr &&
           (result == problem.dy || result == problem.gate || result == problem.up);
  };
  rows.bypass_cache = !was_read(problem.dgate) && !was_read(problem.dup) &&
                      pays_to_bypass_cache(problem.rows * bytes_of_row(problem) / 2);
  rows.prefetch_distance = prefetch_distance(problem.rows * problem.cols *
                                             static_cast<std::int64_t>(dtype_size(rows.dtype)));
  return rows;
}

std::array<MatrixArgument, 5> fields_of(GatedActivationBackwardRows& rows) {
  return {matrix_field(rows.dy, rows.dy_row_stride, rows.dy_col_stride),
          matrix_field(rows.gate, rows.gate_row_stride, rows.gate_col_stride),
          matrix_field(rows.up, rows.up_row_stride, rows.up_col_stride),
          matrix_field(rows.dgate, rows.dgate_row_stride, rows.dgate_col_stride),
          matrix_field(rows.dup, rows.dup_row_stride, rows.dup_col_stride)};
}

}  // namespace

void gated_activation_backward(const GatedActivationBackwardProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const GatedActivationBackwardRows shared = shared_part(problem);
  const DType dtype = problem.dtype;
  each_segment(problem.rows, problem.cols, bytes_of_row(problem),
               [&](std::int64_t row, std::int64_t count, std::int64_t col, std::int64_t cols) {
                 GatedActivationBackwardRows rows = shared;
                 rows.cols = cols;
                 const auto seek = [&](auto& to, auto base, const RowLayout& layout,
                                       std::int64_t col_stride) {
                   seek_row(to, base, layout, dtype, row, count);
                   seek_column(to, col_stride, dtype, col);
                 };
                 seek(rows.dy, problem.dy, problem.dy_rows, rows.dy_col_stride);
                 seek(rows.gate, problem.gate, problem.gate_rows, rows.gate_col_stride);
                 seek(rows.up, problem.up, problem.up_rows, rows.up_col_stride);
                 seek(rows.dgate, problem.dgate, problem.dgate_rows, rows.dgate_col_stride);
                 seek(rows.dup, problem.dup, problem.dup_rows, rows.dup_col_stride);
                 seek_row(rows.row_scale, problem.row_scale, problem.row_scale_rows,
                          accumulate_dtype(dtype), row, count);
                 rows.rows = count;
                 run_tiled_transpose(rows, fields_of, seek_row_scale<GatedActivationBackwardRows>,
                                     table.gated_activation_backward);
                 return count;
               });
}

}  // namespace membound::cpu
