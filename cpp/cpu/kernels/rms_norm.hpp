// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "cpu/kernels/weight.hpp"
#include "membound/dtype.hpp"

// The interface between cpu/rms_norm.cpp and the units per instruction set: plain data and function
// names only.
namespace membound::cpu {

// Evenly spaced rows. All strides count elements.
struct RmsNormRows {
  const void* x;
  const void* residual;  // null: none; else x + residual is normalised and goes to residual_out too
  const void* gate;      // null: none; gated rows have a prepared weight and no residual
  const void* weight;
  const void* bias;  // null: none; else in the form of weight. Centred rows only, as mean
  void* out;
  void* residual_out;
  void* mean;  // null: not wanted
  void* rstd;  // likewise
  DType dtype;
  WeightForm weight_form;
  bool round_before_weight;
  bool norm_before_gate;
  bool prefetch_ahead;  // prefetch the next rows while these are computed
  bool bypass_cache;    // prefetch, and non-temporal stores
  std::int64_t rows, cols;
  std::int64_t x_row_stride, x_col_stride;
  std::int64_t residual_row_stride, residual_col_stride;
  std::int64_t gate_row_stride, gate_col_stride;
  std::int64_t out_row_stride, out_col_stride;
  std::int64_t residual_out_row_stride, residual_out_col_stride;
  std::int64_t mean_row_stride, rstd_row_stride;
  double eps;
  // core/safe_scale.hpp, passed in because this unit must not compile its inline functions.
  double safe_low, safe_high;
  int (*safe_exponent)(double largest, double eps);
};

}  // namespace membound::cpu
