// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/rms_norm_backward.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// Rows of dy * h that are summed in the accumulate dtype; blocks are combined in double.
inline constexpr std::int64_t kBlockOfRows = 32;

// Evenly spaced rows. All strides count elements; 0 for an absent array.
struct RmsNormBackwardRows {
  const void* dy;
  const void* x;
  const void* dsum;    // null: none
  const void* gate;    // null: none
  const void* weight;  // in the accumulate dtype; prepared for 16-bit dtypes
  const void* mean;    // centred rows only
  const void* rstd;
  void* dx;          // null: not wanted
  void* dgate;       // likewise
  void* weight_sum;  // null: not wanted; else += dy * h, in the kernel's order
  void* bias_sum;    // centred rows, together with weight_sum: += dy
  DType dtype;
  bool round_before_weight;
  bool norm_before_gate;
  bool bypass_cache;    // non-temporal stores
  bool prefetch_ahead;  // prefetch the next rows while these are computed
  std::int64_t rows, cols;
  std::int64_t following_rows;  // rows after these at the same strides, for prefetching
  std::int64_t dy_row_stride, dy_col_stride;
  std::int64_t x_row_stride, x_col_stride;
  std::int64_t dsum_row_stride, dsum_col_stride;
  std::int64_t dx_row_stride, dx_col_stride;
  std::int64_t gate_row_stride, gate_col_stride;
  std::int64_t dgate_row_stride, dgate_col_stride;
  std::int64_t mean_row_stride, rstd_row_stride;
};

// total (+)= weight_sum or bias_sum of a block of rows. Both are in the kernel's order and padded
// to a multiple of 64 columns.
struct RmsNormBackwardBlock {
  const void* sums;
  double* total;
  bool first;  // total is overwritten
  DType dtype;
  std::int64_t cols;
};

// dweight or dbias (+)= the sum of `count` totals.
struct RmsNormBackwardWeight {
  const double* totals;
  std::int64_t count;
  std::int64_t cols;
  DType x_dtype;
  void* gradient;
  DType dtype;
  std::int64_t stride;
  bool accumulate;
};

}  // namespace membound::cpu
