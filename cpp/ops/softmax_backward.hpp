// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/softmax_backward.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols.
struct SoftmaxBackwardProblem {
  const void* dy;
  const void* y;
  void* dx;  // may be dy or y: in place
  DType dtype;
  double scale;
  std::int64_t rows, cols;  // at least 1
  RowLayout dy_rows, y_rows, dx_rows;
  std::int64_t dy_col_stride, y_col_stride, dx_col_stride;
};

namespace cpu {
void softmax_backward(const SoftmaxBackwardProblem& problem);
}
namespace cuda {
void softmax_backward(const SoftmaxBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
