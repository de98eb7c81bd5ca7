// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/gated_activation_quant.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/gated_activation.hpp"
#include "cpu/quantised.hpp"

namespace membound::cpu {

namespace {

using Problem = GatedActivationProblem;

// The activation in the dtype of its arithmetic, from rows of that dtype into the scratch.
GatedActivationRows shared_part(const Problem& problem, const QuantScratch& scratch) {
  GatedActivationRows rows{};
  rows.dtype = scratch.dtype;
  rows.numbers = numbers_of(problem.options, scratch.dtype, problem.up != nullptr,
                            problem.row_scale != nullptr);
  rows.cols = problem.cols;
  rows.out_row_stride = scratch.row_stride;
  rows.out_col_stride = 1;
  if (problem.row_scale != nullptr) rows.row_scale_row_stride = row_stride(problem.row_scale_rows);
  return rows;
}

// Gate and up are rows as the activation takes them.
std::int64_t run_wide(const Problem& problem, GatedActivationRows rows, const KernelTable& table,
                      void* y, std::int64_t row, std::int64_t count) {
  const void *gate = problem.gate, *up = problem.up, *scale = problem.row_scale;
  enter_row(rows.gate, gate, problem.gate_rows, problem.dtype, row, count);
  enter_row(rows.up, up, problem.up_rows, problem.dtype, row, count);
  enter_row(rows.row_scale, scale, problem.row_scale_rows, rows.dtype, row, count);
  rows.gate_row_stride = row_stride(problem.gate_rows);
  rows.gate_col_stride = problem.gate_col_stride;
  rows.up_row_stride = problem.up ? row_stride(problem.up_rows) : 0;
  rows.up_col_stride = problem.up ? problem.up_col_stride : 0;
  rows.out = y;
  rows.rows = count;
  rows.ask_distance = ask_distance(problem.rows * problem.cols *
                                   static_cast<std::int64_t>(dtype_size(problem.dtype)));
  table.gated_activation(rows);
  return count;
}

// Rows of 16 bits become float32 first, a piece of columns after another: the gate's in y, where
// the activation then takes its place, up's beside.
std::int64_t run_narrow(const Problem& problem, GatedActivationRows rows, const KernelTable& table,
                        void* y, std::int64_t row, std::int64_t count) {
  constexpr std::int64_t kPiece = QuantScratch::kBytes / sizeof(float);
  alignas(QuantScratch::kLine) float ups[kPiece];
  GatedActivationQuantRows gate{}, up{};
  gate.dtype = up.dtype = problem.dtype;
  gate.row_stride = row_stride(problem.gate_rows);
  gate.col_stride = problem.gate_col_stride;
  gate.to_row_stride = rows.out_row_stride;
  const void *gate_data = problem.gate, *up_data = problem.up, *scale = problem.row_scale;
  enter_row(gate.from, gate_data, problem.gate_rows, problem.dtype, row, count);
  enter_row(rows.row_scale, scale, problem.row_scale_rows, rows.dtype, row, count);
  if (up_data != nullptr) {
    enter_row(up.from, up_data, problem.up_rows, problem.dtype, row, count);
    up.row_stride = row_stride(problem.up_rows);
    up.col_stride = problem.up_col_stride;
    up.to = ups;
    up.to_row_stride = std::min(rows.out_row_stride, kPiece);
    rows.up = ups;
    rows.up_row_stride = up.to_row_stride;
    rows.up_col_stride = 1;
  }
  rows.gate_row_stride = rows.out_row_stride;
  rows.gate_col_stride = 1;
  rows.rows = gate.rows = up.rows = count;
  for (std::int64_t col = 0; col < problem.cols; col += kPiece) {
    rows.cols = gate.cols = up.cols = std::min(kPiece, problem.cols - col);
    gate.to = static_cast<float*>(y) + col;
    rows.gate = rows.out = gate.to;
    table.gated_activation_quant(gate);
    if (up_data != nullptr) table.gated_activation_quant(up);
    table.gated_activation(rows);
    enter_column(gate.from, gate.col_stride, gate.dtype, kPiece);
    enter_column(up.from, up.col_stride, up.dtype, kPiece);
  }
  return count;
}

}  // namespace

void gated_activation_quant(const GatedActivationQuantProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const Problem& given = problem.activation;
  const DType wide = accumulate_dtype(given.dtype);
  const QuantScratch scratch(wide, given.rows, given.cols);
  const GatedActivationRows shared = shared_part(given, scratch);
  const auto run = wide == given.dtype ? run_wide : run_narrow;
  const std::int64_t row_bytes =
      given.cols * ((given.up ? 2 : 1) * static_cast<std::int64_t>(dtype_size(given.dtype)) + 1);
  const RmsNormQuantRows results = quantised_rows(problem, scratch);
  each_part(scratch, given.rows, row_bytes, [&](void* y, std::int64_t first, std::int64_t last) {
    RmsNormQuantRows codes = results;
    codes.y = y;
    for (std::int64_t row = first; row < last; row += codes.rows) {
      std::int64_t count = std::min(scratch.rows, last - row);
      enter_codes(codes, problem, row, count);
      codes.rows = run(given, shared, table, y, row, count);
      table.rms_norm_quant(codes);
    }
  });
}

}  // namespace membound::cpu
