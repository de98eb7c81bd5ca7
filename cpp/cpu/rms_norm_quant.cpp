// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

#include "cpu/float_mode.hpp"
#include "cpu/quantised.hpp"
#include "cpu/rms_norm.hpp"

namespace membound::cpu {

namespace {

PreparedNorm prepare_norm_into(const QuantScratch& scratch, RmsNormProblem norm,
                               const KernelTable& table) {
  norm.out_rows.rank = 1;
  norm.out_rows.strides[0] = scratch.row_stride;
  norm.out_col_stride = 1;
  PreparedNorm prepared = prepare_norm(norm, table);
  prepared.rows.bypass_cache = false;
  return prepared;
}

}  // namespace

void rms_norm_quant(const RmsNormQuantProblem& problem) {
  const KernelTable& table = kernels();
  const FloatMode ieee;
  const RmsNormProblem& given = problem.norm;
  const QuantScratch scratch(given.dtype, given.rows, given.cols);
  const PreparedNorm norm = prepare_norm_into(scratch, given, table);
  const std::int64_t row_bytes = given.cols * ((given.residual ? 3 : 1) * scratch.size + 1);
  quantise_rows(problem, scratch, given.rows, row_bytes, table,
                [&](void* y, std::int64_t row, std::int64_t count) {
                  RmsNormRows rows = norm.rows;
                  rows.out = y;
                  rows.rows = count;
                  enter_rows(rows, given, row);
                  table.rms_norm(rows);
                  return rows.rows;
                });
}

}  // namespace membound::cpu
