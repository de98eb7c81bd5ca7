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
