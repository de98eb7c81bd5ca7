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
  return 2 + (problem.dx.data != nullptr) + (problem.dsum.data != nullptr) +
         (problem.gate.data != nullptr) + (problem.dgate.data != nullptr);
}

std::int64_t matrix_bytes(const RmsNormBackwardProblem& problem) {
  const auto size = static_cast<std::int64_t>(dtype_size(problem.x.dtype));
  return problem.rows * problem.cols * size * arrays_of(problem);
}

bool is_in_place(const RmsNormBackwardProblem& problem) {
  const auto was_read = [&](const void* gradient) {
    return gradient != nullptr && (gradient == problem.dy.data || gradient == problem.x.data ||
                                   gradient == problem.dsum.data || gradient == problem.gate.data);
  };
  return was_read(problem.dx.data) || was_read(problem.dgate.data);
}

// What all rows share. Each run sets row pointers and the number of rows.
RmsNormBackwardRows shared_part(const RmsNormBackwardProblem& problem) {
  RmsNormBackwardRows rows{};
  rows.dtype = problem.x.dtype;
  rows.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  rows.norm_before_gate = problem.norm_before_gate;
  const NormMemory memory = norm_memory(matrix_bytes(problem), problem.gate.data != nullptr);
  rows.prefetch_ahead = memory.prefetch_ahead;
  // Not for in-place calls: those lines are in the cache already.
  rows.bypass_cache = memory.non_temporal && !is_in_place(problem);
  rows.cols = problem.cols;
  rows.dy_row_stride = row_stride(problem.dy.layout);
  rows.x_row_stride = row_stride(problem.x.layout);
  rows.mean_row_stride = problem.mean.data ? row_stride(problem.mean.layout) : 0;
  rows.rstd_row_stride = row_stride(problem.rstd.layout);
  rows.dsum_row_stride = problem.dsum.data ? row_stride(problem.dsum.layout) : 0;
  rows.dx_row_stride = problem.dx.data ? row_stride(problem.dx.layout) : 0;
  rows.gate_row_stride = problem.gate.data ? row_stride(problem.gate.layout) : 0;
  rows.dgate_row_stride = problem.dgate.data ? row_stride(problem.dgate.layout) : 0;
  rows.dy_col_stride = problem.dy.col_stride;
  rows.x_col_stride = problem.x.col_stride;
  rows.dsum_col_stride = problem.dsum.col_stride;
  rows.dx_col_stride = problem.dx.col_stride;
  rows.gate_col_stride = problem.gate.col_stride;
  rows.dgate_col_stride = problem.dgate.col_stride;
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
  const auto run = problem.gate.data ? table.rms_norm_backward_gated
                   : problem.centred ? table.rms_norm_backward_centred
                                     : table.rms_norm_backward;
  for (std::int64_t row = first; row < last; row += rows.rows) {
    rows.rows = end - row;
    seek_row(rows.dy, problem.dy, row, rows.rows);
    seek_row(rows.x, problem.x, row, rows.rows);
    seek_row(rows.dsum, problem.dsum, row, rows.rows);
    seek_row(rows.gate, problem.gate, row, rows.rows);
    seek_row(rows.dx, problem.dx, row, rows.rows);
    seek_row(rows.dgate, problem.dgate, row, rows.rows);
    seek_row(rows.mean, problem.mean, row, rows.rows);
    seek_row(rows.rstd, problem.rstd, row, rows.rows);
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
  const auto size = static_cast<std::int64_t>(dtype_size(problem.x.dtype));
  WeightSource source{problem.weight.data, problem.weight.dtype,  problem.weight.stride,
                      problem.cols,        problem.weight_offset, problem.x.dtype};
  const bool gated = problem.gate.data != nullptr;
  if (problem.weight.data == nullptr) source = ones(source);
  const PreparedWeight weight = prepare_weight(source, /*widen=*/size == 2 || gated, table);
  rows.weight = weight.data;

  const std::int64_t grain =
      std::max<std::int64_t>(1, kBytesPerThread / (arrays_of(problem) * problem.cols * size));
  if (problem.dweight.data != nullptr || problem.dbias.data != nullptr) {
    const ColumnGradients gradients{
        problem.x.dtype,
        problem.rows,
        problem.cols,
        problem.centred,
        problem.accumulate_sums,
        {problem.dweight.data, problem.dweight.dtype, problem.dweight.stride},
        {problem.dbias.data, problem.dbias.dtype, problem.dbias.stride}};
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
