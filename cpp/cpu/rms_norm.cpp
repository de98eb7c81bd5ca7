// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/rms_norm.hpp"

#include <algorithm>

#include "core/dispatch.hpp"
#include "core/safe_scale.hpp"
#include "cpu/float_mode.hpp"
#include "cpu/parallel.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

std::int64_t arrays_of(const RmsNormProblem& problem) {
  return problem.residual.data ? 4 : problem.gate.data ? 3 : 2;
}

std::int64_t matrix_bytes(const RmsNormProblem& problem) {
  const auto size = static_cast<std::int64_t>(dtype_size(problem.x.dtype));
  return problem.rows * problem.cols * size * arrays_of(problem);
}

bool is_in_place(const RmsNormProblem& problem) {
  const auto was_read = [&](const void* output) {
    return output == problem.x.data || output == problem.residual.data ||
           output == problem.gate.data;
  };
  return was_read(problem.out.data) ||
         (problem.residual.data != nullptr && was_read(problem.residual_out.data));
}

// Reading 16-bit parameters in place costs a conversion per row and element: with enough rows,
// widening them once is faster. Non-temporal stores then need line-aligned rows.
bool pays_to_widen(const RmsNormProblem& problem, bool bypass_cache) {
  constexpr std::int64_t kRows = 16;
  const std::size_t size = dtype_size(problem.x.dtype);
  if (size != 2 || problem.rows < kRows) return false;
  const bool are_line_aligned = reinterpret_cast<std::uintptr_t>(problem.out.data) % 64 == 0 &&
                                row_stride(problem.out.layout) * 2 % 64 == 0;
  return are_line_aligned || !bypass_cache;
}

// What all rows share. Each run sets row pointers and the number of rows.
RmsNormRows shared_part(const RmsNormProblem& problem) {
  RmsNormRows rows{};
  rows.dtype = problem.x.dtype;
  rows.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  rows.norm_before_gate = problem.norm_before_gate;
  rows.cols = problem.cols;
  rows.x_col_stride = problem.x.col_stride;
  rows.out_col_stride = problem.out.col_stride;
  rows.x_row_stride = row_stride(problem.x.layout);
  rows.out_row_stride = row_stride(problem.out.layout);
  rows.mean_row_stride = problem.mean.data ? row_stride(problem.mean.layout) : 0;
  rows.rstd_row_stride = problem.rstd.data ? row_stride(problem.rstd.layout) : 0;
  if (problem.residual.data) {
    rows.residual_col_stride = problem.residual.col_stride;
    rows.residual_out_col_stride = problem.residual_out.col_stride;
    rows.residual_row_stride = row_stride(problem.residual.layout);
    rows.residual_out_row_stride = row_stride(problem.residual_out.layout);
  }
  if (problem.gate.data) {
    rows.gate_col_stride = problem.gate.col_stride;
    rows.gate_row_stride = row_stride(problem.gate.layout);
  }
  rows.eps = problem.eps;
  const NormMemory memory = norm_memory(matrix_bytes(problem), problem.gate.data != nullptr);
  rows.prefetch_ahead = memory.prefetch_ahead;
  // Not for in-place calls: those lines are in the cache already.
  rows.bypass_cache = memory.non_temporal && !is_in_place(problem);
  set_safe_range(rows, problem.x.dtype, problem.eps);
  return rows;
}

void prepare_parameters(PreparedNorm& norm, const RmsNormProblem& problem, bool widen,
                        const KernelTable& table) {
  WeightSource weight{problem.weight.data, problem.weight.dtype,  problem.weight.stride,
                      problem.cols,        problem.weight_offset, problem.x.dtype};
  const WeightSource bias{
      problem.bias.data, problem.bias.dtype, problem.bias.stride, problem.cols, 0.0,
      problem.x.dtype};
  if (problem.gate.data != nullptr) {
    if (weight.data == nullptr) weight = ones(weight);
    widen = true;
  }
  // Kernels need both in one form, and never a bias alone.
  if (bias.data != nullptr) {
    if (weight.data == nullptr) weight = ones(weight);
    widen = widen || !is_native(weight) || !is_native(bias);
  }
  norm.weight = prepare_weight(weight, widen, table);
  norm.bias = prepare_weight(bias, widen, table);
  norm.rows.weight = norm.weight.data;
  norm.rows.weight_form = norm.weight.form;
  norm.rows.bias = norm.bias.data;
}

std::array<MatrixArgument, 5> fields_of(RmsNormRows& rows) {
  return {
      matrix_field(rows.x, rows.x_row_stride, rows.x_col_stride),
      matrix_field(rows.residual, rows.residual_row_stride, rows.residual_col_stride),
      matrix_field(rows.gate, rows.gate_row_stride, rows.gate_col_stride),
      matrix_field(rows.out, rows.out_row_stride, rows.out_col_stride),
      matrix_field(rows.residual_out, rows.residual_out_row_stride, rows.residual_out_col_stride)};
}

}  // namespace

PreparedNorm prepare_norm(const RmsNormProblem& problem, const KernelTable& table) {
  PreparedNorm norm{shared_part(problem), {}, {}};
  prepare_parameters(norm, problem, pays_to_widen(problem, norm.rows.bypass_cache), table);
  return norm;
}

void seek_rows(RmsNormRows& rows, const RmsNormProblem& problem, std::int64_t row) {
  seek_row(rows.x, problem.x, row, rows.rows);
  seek_row(rows.residual, problem.residual, row, rows.rows);
  seek_row(rows.gate, problem.gate, row, rows.rows);
  seek_row(rows.out, problem.out, row, rows.rows);
  seek_row(rows.residual_out, problem.residual_out, row, rows.rows);
  seek_row(rows.mean, problem.mean, row, rows.rows);
  seek_row(rows.rstd, problem.rstd, row, rows.rows);
}

void rms_norm(const RmsNormProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const PreparedNorm norm = prepare_norm(problem, table);
  const std::int64_t row_bytes =
      arrays_of(problem) * problem.cols * static_cast<std::int64_t>(dtype_size(problem.x.dtype));
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesPerThread / row_bytes);
  const auto run = problem.gate.data ? table.rms_norm_gated
                   : problem.centred ? table.rms_norm_centred
                                     : table.rms_norm;
  parallel_for(problem.rows, grain, [&](std::int64_t first, std::int64_t last) {
    RmsNormRows rows = norm.rows;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.rows = last - row;
      seek_rows(rows, problem, row);
      run_tiled_transpose(
          rows, fields_of,
          [](RmsNormRows& part, const RmsNormRows& all, std::int64_t at) {
            const DType wide = accumulate_dtype(all.dtype);
            part.mean = offset_pointer(all.mean, at * all.mean_row_stride, wide);
            part.rstd = offset_pointer(all.rstd, at * all.rstd_row_stride, wide);
          },
          run);
    }
  });
}

}  // namespace membound::cpu
