// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/softmax_backward.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// Evenly spaced rows. All strides count elements.
struct SoftmaxBackwardRows {
  const void* dy;
  const void* y;
  void* dx;
  DType dtype;
  double scale;
  std::int64_t rows, cols;
  std::int64_t dy_row_stride, y_row_stride, dx_row_stride;
  std::int64_t dy_col_stride, y_col_stride, dx_col_stride;
  bool bypass_cache;  // dx is large, and neither dy nor y
};

}  // namespace membound::cpu
