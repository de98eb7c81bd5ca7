// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/elementwise.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/kernels/elementwise_rows.hpp"
#include "cpu/segments.hpp"
#include "cpu/tiled_transpose.hpp"

// The CPU back end of element-wise ops, but for the arithmetic.
namespace membound::cpu {

inline std::array<MatrixArgument, 3> fields_of(ElementwiseRows& rows) {
  const auto field = [](auto& matrix) {
    return matrix_field(matrix.data, matrix.row_stride, matrix.col_stride);
  };
  return {field(rows.inputs[0]), field(rows.inputs[1]), field(rows.out)};
}

// Moves to column `col` of row `row`; `count` rows from there on, or fewer, are evenly spaced.
template <class Pointer>
void seek(EvenRows<Pointer>& to, const BasicRows<Pointer>& from, std::int64_t row,
          std::int64_t& count, std::int64_t col) {
  to = {nullptr, row_stride(from.layout), from.col_stride};
  seek_row(to.data, from, row, count);
  seek_column(to.data, from.col_stride, from.dtype, col);
}

// Splits the rows of a problem among the threads and calls run(rows) for parts of them.
template <class Run>
void each_elementwise_part(const ElementwiseProblem& problem, Run run) {
  const FloatMode ieee;
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  const std::int64_t row_bytes = (problem.has_two_inputs() ? 3 : 2) * problem.cols * size;
  ElementwiseRows shared{};
  shared.dtype = problem.dtype;
  // Not for in-place calls: those lines are in the cache already.
  shared.bypass_cache =
      !problem.is_in_place() && pays_to_bypass_cache(problem.rows * row_bytes / 2);
  shared.prefetch_distance = prefetch_distance(problem.rows * problem.cols * size);
  each_segment(problem.rows, problem.cols, row_bytes,
               [&](std::int64_t row, std::int64_t count, std::int64_t col, std::int64_t cols) {
                 ElementwiseRows rows = shared;
                 for (int i = 0; i < 2; ++i)
                   seek(rows.inputs[i], problem.inputs[i], row, count, col);
                 seek(rows.out, problem.out, row, count, col);
                 rows.rows = count;
                 rows.cols = cols;
                 run_tiled_transpose(rows, fields_of, [](auto&&...) {}, run);
                 return count;
               });
}

}  // namespace membound::cpu
