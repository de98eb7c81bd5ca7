// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/softmax.cpp and the units per instruction set: plain data and function
// names only.
namespace membound::cpu {

// Evenly spaced rows. All strides count elements.
struct SoftmaxRows {
  const void* x;
  const void* mask;  // null: none
  void* out;
  DType dtype, mask_dtype;
  double scale;
  std::int64_t rows, cols;
  std::int64_t x_row_stride, mask_row_stride, out_row_stride;
  std::int64_t x_col_stride, mask_col_stride, out_col_stride;
  // Row r has first_unmasked + r * unmasked_step unmasked columns, clamped to its width.
  std::int64_t first_unmasked, unmasked_step;
  bool bypass_cache;
  bool prefetch_ahead;  // prefetch the next row while this one is computed
};

}  // namespace membound::cpu
