// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/quantised.hpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// Evenly spaced, contiguous rows of a result before quantisation, and their codes. All strides
// count elements.
struct RmsNormQuantRows {
  const void* y;
  void* out;
  const float* static_scale;  // null: dynamic
  void* scale;                // float32; null with a static one
  DType dtype;                // of y
  DType out_dtype;
  std::int64_t rows, cols, group_size;
  std::int64_t y_row_stride;
  std::int64_t out_row_stride, out_col_stride;
  std::int64_t scale_row_stride, scale_col_stride;
  float scale_upper_bound;
};

}  // namespace membound::cpu
