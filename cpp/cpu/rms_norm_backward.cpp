// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/rms_norm_backward.hpp"

#include <algorithm>

#include "cpu/float_mode.hpp"
#include "cpu/isa.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rows.hpp"
#include "cpu/tiled_transpose.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cpu {

namespace {

std::int64_t arrays_of(const RmsNormBackwardProblem& problem) {
  return 2 + (problem.dx != nullptr) + (problem.dsum != nullptr) + (problem.gate != nullptr) +
         (problem.dgate != nullptr);
}

std::int64_t matrix_bytes(const RmsNormBackwardProblem& problem) {
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  return problem.rows * problem.cols * size * arrays_of(problem);
}

bool is_in_place(const RmsNormBackwardProblem& problem) {
  const auto was_read = [&](const void* gradient) {
    return gradient != nullptr && (gradient == problem.dy || gradient == problem.x ||
                                   gradient == problem.dsum || gradient == problem.gate);
  };
  return was_read(problem.dx) || was_read(problem.dgate);
}

// What all rows share. Each run sets row pointers and the number of rows.
RmsNormBackwardRows shared_part(const RmsNormBackwardProblem& problem) {
  RmsNormBackwardRows rows{};
  rows.dtype = problem.dtype;
  rows.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  rows.norm_before_gate = problem.norm_before_gate;
  const NormMemory memory = norm_memory(matrix_bytes(problem), problem.gate != nullptr);
  rows.prefetch_ahead = memory.prefetch_ahead;
  // Not for in-place calls: those lines are in the cache already.
  rows.bypass_cache = memory.non_temporal && !is_in_place(problem);
  rows.cols = problem.cols;
  rows.dy_row_stride = row_stride(problem.dy_rows);
  rows.x_row_stride = row_stride(problem.x_rows);
  rows.mean_row_stride = problem.mean ? row_stride(problem.mean_rows) : 0;
  rows.rstd_row_stride = row_stride(problem.rstd_rows);
  rows.dsum_row_stride = problem.dsum ? row_stride(problem.dsum_rows) : 0;
  rows.dx_row_stride = problem.dx ? row_stride(problem.dx_rows) : 0;
  rows.gate_row_stride = problem.gate ? row_stride(problem.gate_rows) : 0;
  rows.dgate_row_stride = problem.dgate ? row_stride(problem.dgate_rows) : 0;
  rows.dy_col_stride = problem.dy_col_stride;
  rows.x_col_stride = problem.x_col_stride;
  rows.dsum_col_stride = problem.dsum_col_stride;
  rows.dx_col_stride = problem.dx_col_stride;
  rows.gate_col_stride = problem.gate_col_stride;
  rows.dgate_col_stride = problem.dgate_col_stride;
  return rows;
}

std::array<MatrixArgument, 6> fields_of(RmsNormBackwardRows& rows) {
  return {matrix_field(rows.dy, rows.dy_row_stride, rows.dy_col_stride),
          matrix_field(rows.x, rows.x_row_stride, rows.x_col_stride),
          matrix_field(rows.dsum, rows.dsum_row_stride, rows.dsum_col_stride),
          matrix_field(rows.gate, rows.gate_row_stride, rows.gate_col_stride),
          matrix_field(rows.dx, rows.dx_row_stride, rows.dx_col_stride),
          matrix_field(rows.dgate, rows.dgate_row_stride, rows.dgate_col_stride)};
}

// Rows [first, last) of the problem, split where a layout's innermost axis ends. This thread goes
// on to row `end`.
void run_rows(const RmsNormBackwardProblem& problem, RmsNormBackwardRows rows,
              const KernelTable& table, std::int64_t first, std::int64_t last, std::int64_t end) {
  const DType dtype = problem.dtype;
  const auto run = problem.gate      ? table.rms_norm_backward_gated
                   : problem.centred ? table.rms_norm_backward_centred
                                     : table.rms_norm_backward;
  for (std::int64_t row = first; row < last; row += rows.rows) {
    rows.rows = end - row;
    seek_row(rows.dy, problem.dy, problem.dy_rows, dtype, row, rows.rows);
    seek_row(rows.x, problem.x, problem.x_rows, dtype, row, rows.rows);
    seek_row(rows.dsum, problem.dsum, problem.dsum_rows, dtype, row, rows.rows);
    seek_row(rows.gate, problem.gate, problem.gate_rows, dtype, row, rows.rows);
    seek_row(rows.dx, problem.dx, problem.dx_rows, dtype, row, rows.rows);
    seek_row(rows.dgate, problem.dgate, problem.dgate_rows, dtype, row, rows.rows);
    seek_row(rows.mean, problem.mean, problem.mean_rows, accumulate_dtype(dtype), row, rows.rows);
    seek_row(rows.rstd, problem.rstd, problem.rstd_rows, accumulate_dtype(dtype), row, rows.rows);
    rows.following_rows = std::max<std::int64_t>(0, row + rows.rows - last);
    rows.rows -= rows.following_rows;
    run_tiled_transpose(
        rows, fields_of,
        [](RmsNormBackwardRows& part, const RmsNormBackwardRows& all, std::int64_t at) {
          const DType wide = accumulate_dtype(all.dtype);
          part.following_rows = 0;
          part.mean = offset_pointer(all.mean, at * all.mean_row_stride, wide);
          part.rstd = offset_pointer(all.rstd, at * all.rstd_row_stride, wide);
        },
        run);
  }
}

}  // namespace

void rms_norm_backward(const RmsNormBackwardProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  RmsNormBackwardRows rows = shared_part(problem);
  const auto size = static_cast<std::int64_t>(dtype_size(problem.dtype));
  WeightSource source{problem.weight, problem.weight_dtype,  problem.weight_stride,
                      problem.cols,   problem.weight_offset, problem.dtype};
  const bool gated = problem.gate != nullptr;
  if (problem.weight == nullptr) source = ones(source);
  const PreparedWeight weight = prepare_weight(source, /*widen=*/size == 2 || gated, table);
  rows.weight = weight.data;

  const std::int64_t grain =
      std::max<std::int64_t>(1, kBytesPerThread / (arrays_of(problem) * problem.cols * size));
  if (problem.dweight != nullptr || problem.dbias != nullptr) {
    const ColumnGradients gradients{
        problem.dtype,
        problem.rows,
        problem.cols,
        problem.centred,
        problem.accumulate,
        {problem.dweight, problem.dweight_dtype, problem.dweight_stride},
        {problem.dbias, problem.dbias_dtype, problem.dbias_stride}};
    return sum_columns(gradients, table, grain,
                       [&](std::int64_t, void* weight_sum, void* bias_sum, std::int64_t first,
                           std::int64_t last, std::int64_t end) {
                         RmsNormBackwardRows of = rows;
                         of.weight_sum = weight_sum;
                         of.bias_sum = bias_sum;
                         run_rows(problem, of, table, first, last, end);
                       });
  }
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    run_rows(problem, rows, table, first, last, last);
  });
}

}  // namespace membound::cpu
