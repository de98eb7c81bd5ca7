// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The seam between cpu/gated_activation_quant.cpp and the units per instruction set: plain data and
// function names.
namespace membound::cpu {

// Evenly spaced rows of 16 bits, and where they go as float32. All strides count elements.
struct GatedActivationQuantRows {
  const void* from;
  float* to;
  DType dtype;  // of from
  std::int64_t rows, cols;
  std::int64_t row_stride, col_stride;
  std::int64_t to_row_stride;  // of columns that are neighbours
};

#define MEMBOUND_DECLARE_GATED_ACTIVATION_QUANT(isa)                 \
  namespace isa {                                                    \
  void gated_activation_quant(const GatedActivationQuantRows& rows); \
  }
MEMBOUND_DECLARE_GATED_ACTIVATION_QUANT(baseline)
MEMBOUND_DECLARE_GATED_ACTIVATION_QUANT(avx2)
MEMBOUND_DECLARE_GATED_ACTIVATION_QUANT(avx512)
MEMBOUND_DECLARE_GATED_ACTIVATION_QUANT(neon)
#undef MEMBOUND_DECLARE_GATED_ACTIVATION_QUANT

}  // namespace membound::cpu
