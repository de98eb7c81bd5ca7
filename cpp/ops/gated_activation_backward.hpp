// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/gated_activation_backward.hpp"
#include "ops/gated_activation.hpp"

namespace membound {

// Like GatedActivationProblem. dgate or dup may be null (not wanted); without up there is no dup.
// Each may be dy, gate or up.
struct GatedActivationBackwardProblem {
  const void* dy;
  const void* gate;
  const void* up;
  const void* row_scale;
  void* dgate;
  void* dup;
  DType dtype;
  GatedActivationOptions options;
  std::int64_t rows;
  std::int64_t cols;
  RowLayout dy_rows, gate_rows, up_rows, row_scale_rows, dgate_rows, dup_rows;
  std::int64_t dy_col_stride, gate_col_stride, up_col_stride, dgate_col_stride, dup_col_stride;
};

namespace cpu {
void gated_activation_backward(const GatedActivationBackwardProblem& problem);
}
namespace cuda {
void gated_activation_backward(const GatedActivationBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
