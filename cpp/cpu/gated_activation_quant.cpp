// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_activation_quant.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/gated_activation.hpp"
#include "cpu/quantised.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

using Problem = GatedActivationProblem;

// Evenly spaced rows of gate and up as given, and of the codes. `out` is the scratch, in the dtype
// of the arithmetic.
struct GateAndCodes : GatedActivationRows {
  RmsNormQuantRows codes;
};

std::array<MatrixArgument, 3> fields_of(GateAndCodes& rows) {
  return {matrix_field(rows.gate, rows.gate_row_stride, rows.gate_col_stride),
          matrix_field(rows.up, rows.up_row_stride, rows.up_col_stride),
          codes_field(rows.codes.out, rows.codes.out_row_stride, rows.codes.out_col_stride)};
}

void seek_scales(GateAndCodes& part, const GateAndCodes& all, std::int64_t at) {
  seek_row_scale<GatedActivationRows>(part, all, at);
  part.codes.scale =
      offset_pointer(all.codes.scale, at * all.codes.scale_row_stride, DType::kFloat32);
}

GateAndCodes shared_part(const Problem& problem, const QuantScratch& scratch) {
  GateAndCodes rows{};
  rows.dtype = problem.dtype;
  rows.numbers = numbers_of(problem.options, scratch.dtype, problem.up != nullptr,
                            problem.row_scale != nullptr);
  rows.cols = problem.cols;
  rows.gate_row_stride = row_stride(problem.gate_rows);
  rows.gate_col_stride = problem.gate_col_stride;
  if (problem.up != nullptr) {
    rows.up_row_stride = row_stride(problem.up_rows);
    rows.up_col_stride = problem.up_col_stride;
  }
  rows.out_row_stride = scratch.row_stride;
  rows.out_col_stride = 1;
  if (problem.row_scale != nullptr) rows.row_scale_row_stride = row_stride(problem.row_scale_rows);
  rows.prefetch_distance = prefetch_distance(problem.rows * problem.cols *
                                             static_cast<std::int64_t>(dtype_size(problem.dtype)));
  return rows;
}

// Widens 16-bit rows to float32, one segment of columns after another: the gate into `out`, where
// the activation then overwrites it, and up into a buffer.
void run_narrow(const GatedActivationRows& given, const KernelTable& table) {
  constexpr std::int64_t kSegment = QuantScratch::kBytes / sizeof(float);
  alignas(QuantScratch::kLine) float ups[kSegment];
  GatedActivationRows rows = given;
  GatedActivationQuantRows gate{}, up{};
  rows.dtype = accumulate_dtype(given.dtype);
  gate.dtype = up.dtype = given.dtype;
  gate.from = given.gate;
  gate.row_stride = given.gate_row_stride;
  gate.col_stride = given.gate_col_stride;
  gate.to_row_stride = rows.gate_row_stride = given.out_row_stride;
  rows.gate_col_stride = 1;
  if (given.up != nullptr) {
    up.from = given.up;
    up.row_stride = given.up_row_stride;
    up.col_stride = given.up_col_stride;
    up.to = ups;
    up.to_row_stride = rows.up_row_stride = std::min(given.out_row_stride, kSegment);
    rows.up = ups;
    rows.up_col_stride = 1;
  }
  rows.prefetch_distance = 0;  // it reads what was just written
  gate.rows = up.rows = given.rows;
  for (std::int64_t col = 0; col < given.cols; col += kSegment) {
    rows.cols = gate.cols = up.cols = std::min(kSegment, given.cols - col);
    gate.to = static_cast<float*>(given.out) + col;
    rows.gate = rows.out = gate.to;
    table.gated_activation_quant(gate);
    if (given.up != nullptr) table.gated_activation_quant(up);
    table.gated_activation(rows);
    seek_column(gate.from, gate.col_stride, gate.dtype, kSegment);
    seek_column(up.from, up.col_stride, up.dtype, kSegment);
  }
}

// As many rows at a time as the scratch holds: it stays in the L1 cache.
void run(const GateAndCodes& rows, const QuantScratch& scratch, const KernelTable& table) {
  GateAndCodes part = rows;
  for (std::int64_t first = 0; first < rows.rows; first += scratch.rows) {
    part.rows = part.codes.rows = std::min(scratch.rows, rows.rows - first);
    part.gate = offset_pointer(rows.gate, first * rows.gate_row_stride, rows.dtype);
    part.up = offset_pointer(rows.up, first * rows.up_row_stride, rows.dtype);
    part.codes.out =
        offset_pointer(rows.codes.out, first * rows.codes.out_row_stride, rows.codes.out_dtype);
    seek_scales(part, rows, first);
    scratch.dtype == rows.dtype ? table.gated_activation(part) : run_narrow(part, table);
    table.rms_norm_quant(part.codes);
  }
}

void seek_gates(GateAndCodes& rows, const Problem& problem, std::int64_t row) {
  const void *gate = problem.gate, *up = problem.up, *scale = problem.row_scale;
  seek_row(rows.gate, gate, problem.gate_rows, problem.dtype, row, rows.rows);
  seek_row(rows.up, up, problem.up_rows, problem.dtype, row, rows.rows);
  seek_row(rows.row_scale, scale, problem.row_scale_rows, accumulate_dtype(problem.dtype), row,
           rows.rows);
}

}  // namespace

void gated_activation_quant(const GatedActivationQuantProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const Problem& given = problem.activation;
  const QuantScratch scratch(accumulate_dtype(given.dtype), given.rows, given.cols);
  GateAndCodes shared = shared_part(given, scratch);
  shared.codes = quantised_rows(problem, scratch);
  const std::int64_t row_bytes =
      given.cols * ((given.up ? 2 : 1) * static_cast<std::int64_t>(dtype_size(given.dtype)) + 1);
  each_part(scratch, given.rows, row_bytes, [&](void* y, std::int64_t first, std::int64_t last) {
    GateAndCodes rows = shared;
    rows.codes.y = rows.out = y;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.rows = last - row;
      seek_gates(rows, given, row);
      seek_codes(rows.codes, problem, row, rows.rows);
      run_tiled_transpose(rows, fields_of, seek_scales,
                          [&](const GateAndCodes& part) { run(part, scratch, table); });
    }
  });
}

}  // namespace membound::cpu
