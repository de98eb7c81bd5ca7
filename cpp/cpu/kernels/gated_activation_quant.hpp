// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/gated_activation_quant.cpp and the units per instruction set: plain
// data and function names only.
namespace membound::cpu {

// Evenly spaced 16-bit rows and their float32 destination. All strides count elements.
struct GatedActivationQuantRows {
  const void* from;
  float* to;
  DType dtype;  // of from
  std::int64_t rows, cols;
  std::int64_t row_stride, col_stride;
  std::int64_t to_row_stride;  // its columns are contiguous
};

}  // namespace membound::cpu
