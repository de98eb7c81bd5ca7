// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/dtype.hpp"

// The interface between cpu/gated_activation.cpp and the units per instruction set: plain data and
// function names only.
namespace membound::cpu {

// The values of Activation, whose header includes std:: headers.
enum class ActivationKind : std::uint8_t {
  kSilu,
  kGelu,
  kGeluTanh,
  kSigmoid,
  kRelu2,
  kRelu,
  kSitu
};

// Constants of all elements, rounded to the dtype of the arithmetic on use.
struct ActivationNumbers {
  ActivationKind kind;
  bool plain;  // gated, alpha 1, no limit, no offset, no row scale
  double alpha, limit, up_offset;
  double up_cap;           // kSitu's soft cap of up, 0 for none; limit is infinite then
  double lowest, highest;  // clamp of the gate: beyond, alpha * gate has no effect; finite
};

// Evenly spaced rows. All strides count elements.
struct GatedActivationRows {
  const void* gate;
  const void* up;         // null: none
  const void* row_scale;  // null: none
  void* out;
  DType dtype;
  ActivationNumbers numbers;
  std::int64_t rows, cols;
  std::int64_t gate_row_stride, up_row_stride, row_scale_row_stride, out_row_stride;
  std::int64_t gate_col_stride, up_col_stride, out_col_stride;
  bool bypass_cache;
  std::int64_t prefetch_distance;
};

}  // namespace membound::cpu
