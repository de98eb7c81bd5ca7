// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/quantised.hpp"
#include "cpu/rms_norm.hpp"
#include "cpu/tiled_transpose.hpp"

namespace membound::cpu {

namespace {

// Evenly spaced rows of a norm, whose out is the scratch, and of its codes.
struct NormAndCodes : RmsNormRows {
  RmsNormQuantRows codes;
};

std::array<MatrixArgument, 4> fields_of(NormAndCodes& rows) {
  return {
      matrix_field(rows.x, rows.x_row_stride, rows.x_col_stride),
      matrix_field(rows.residual, rows.residual_row_stride, rows.residual_col_stride),
      matrix_field(rows.residual_out, rows.residual_out_row_stride, rows.residual_out_col_stride),
      codes_field(rows.codes.out, rows.codes.out_row_stride, rows.codes.out_col_stride)};
}

void seek_scales(NormAndCodes& part, const NormAndCodes& all, std::int64_t at) {
  part.codes.scale =
      offset_pointer(all.codes.scale, at * all.codes.scale_row_stride, DType::kFloat32);
}

PreparedNorm prepare_norm_into(const QuantScratch& scratch, RmsNormProblem norm,
                               const KernelTable& table) {
  norm.out.layout.rank = 1;
  norm.out.layout.strides[0] = scratch.row_stride;
  norm.out.col_stride = 1;
  PreparedNorm prepared = prepare_norm(norm, table);
  prepared.rows.bypass_cache = false;
  return prepared;
}

// As many rows at a time as the scratch holds: it stays in the L1 cache.
void run(const NormAndCodes& rows, const QuantScratch& scratch, const KernelTable& table) {
  NormAndCodes part = rows;
  for (std::int64_t first = 0; first < rows.rows; first += scratch.rows) {
    part.rows = part.codes.rows = std::min(scratch.rows, rows.rows - first);
    part.x = offset_pointer(rows.x, first * rows.x_row_stride, rows.dtype);
    part.residual = offset_pointer(rows.residual, first * rows.residual_row_stride, rows.dtype);
    part.residual_out =
        offset_pointer(rows.residual_out, first * rows.residual_out_row_stride, rows.dtype);
    part.codes.out =
        offset_pointer(rows.codes.out, first * rows.codes.out_row_stride, rows.codes.out_dtype);
    seek_scales(part, rows, first);
    table.rms_norm(part);
    table.rms_norm_quant(part.codes);
  }
}

}  // namespace

void rms_norm_quant(const RmsNormQuantProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const RmsNormProblem& given = problem.norm;
  const QuantScratch scratch(given.x.dtype, given.rows, given.cols);
  const PreparedNorm norm = prepare_norm_into(scratch, given, table);
  const RmsNormQuantRows codes = quantised_rows(problem, scratch);
  const std::int64_t row_bytes = given.cols * ((given.residual.data ? 3 : 1) * scratch.size + 1);
  each_part(scratch, given.rows, row_bytes, [&](void* y, std::int64_t first, std::int64_t last) {
    NormAndCodes rows{norm.rows, codes};
    rows.codes.y = rows.out = y;
    for (std::int64_t row = first; row < last; row += rows.rows) {
      rows.rows = last - row;
      seek_rows(rows, given, row);
      seek_codes(rows.codes, problem, row, rows.rows);
      run_tiled_transpose(rows, fields_of, seek_scales,
                          [&](const NormAndCodes& part) { run(part, scratch, table); });
    }
  });
}

}  // namespace membound::cpu
