// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/flattened_rows.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/gated_activation.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols, or to a single row if all arrays
// are contiguous and no row scale tells rows apart.
struct GatedActivationProblem {
  const void* gate;
  const void* up;         // null: none
  const void* row_scale;  // null: none; else accumulate_dtype(dtype)
  void* out;              // may be gate or up: in place
  DType dtype;
  GatedActivationOptions options;
  std::int64_t rows;  // at least 1
  std::int64_t cols;  // at least 1
  RowLayout gate_rows, up_rows, out_rows, row_scale_rows;
  std::int64_t gate_col_stride, up_col_stride, out_col_stride;
};

// The checks of inputs that forward and backward share.
void check_gate_and_up(const ConstTensorView& gate, const ConstTensorView* up,
                       const ConstTensorView* row_scale, const GatedActivationOptions& options,
                       const char* op);

namespace cpu {
void gated_activation(const GatedActivationProblem& problem);
}
namespace cuda {
void gated_activation(const GatedActivationProblem& problem, StreamView stream);
}

}  // namespace membound
