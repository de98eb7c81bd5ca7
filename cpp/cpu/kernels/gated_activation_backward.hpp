// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/gated_activation.hpp"

namespace membound::cpu {

// Evenly spaced rows. All strides count elements.
struct GatedActivationBackwardRows {
  const void* dy;
  const void* gate;
  const void* up;         // null: none
  const void* row_scale;  // null: none
  void* dgate;            // null: not wanted
  void* dup;              // null: not wanted
  DType dtype;
  ActivationNumbers numbers;
  std::int64_t rows, cols;
  std::int64_t dy_row_stride, gate_row_stride, up_row_stride, row_scale_row_stride;
  std::int64_t dgate_row_stride, dup_row_stride;
  std::int64_t dy_col_stride, gate_col_stride, up_col_stride, dgate_col_stride, dup_col_stride;
  bool bypass_cache;
  std::int64_t prefetch_distance;
};

}  // namespace membound::cpu
