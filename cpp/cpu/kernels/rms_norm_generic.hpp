// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/rms_norm_generic.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// Converts rows between floating dtypes with one rounding; the work area's dtype is float32 or
// float64. All strides count elements.
struct RowConversion {
  const void* from;
  void* to;
  DType from_dtype, to_dtype;
  bool to_work_area;  // else out of it
  std::int64_t rows, cols;
  std::int64_t from_row_stride, from_col_stride;
  std::int64_t to_row_stride, to_col_stride;
};

}  // namespace membound::cpu
