// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/softmax_backward.hpp"

#include "core/route.hpp"
#include "core/validate.hpp"

namespace membound {

void softmax_backward(const ConstTensorView& dy, const ConstTensorView& y, double scale,
                      const TensorView& dx, StreamView stream) {
  constexpr const char* kOp = "softmax_backward";
  check_rows(y, kOp, "y");
  check_floating(y, kOp, "y");
  check_like(dy, "dy", y, "y", kOp);
  check_finite(scale, y.dtype, kOp, "scale");
  check_like(dx, "dx", y, "y", kOp);
  check_writable(dx, kOp, "dx");
  check_overlap(dx, "dx", dy, "dy", kOp, true);
  check_overlap(dx, "dx", y, "y", kOp, true);
  if (y.size() == 0) return;
  SoftmaxBackwardProblem problem{};
  problem.dy = dy.data;
  problem.y = y.data;
  problem.dx = dx.data;
  problem.dtype = y.dtype;
  problem.scale = scale;
  problem.cols = y.shape[y.rank - 1];
  problem.rows = y.size() / problem.cols;
  problem.dy_rows = row_layout(dy, dy.rank - 1, kOp, "dy");
  problem.dy_col_stride = column_stride(dy);
  problem.y_rows = row_layout(y, y.rank - 1, kOp, "y");
  problem.y_col_stride = column_stride(y);
  problem.dx_rows = row_layout(dx, dx.rank - 1, kOp, "dx");
  problem.dx_col_stride = column_stride(dx);
  route(
      y.device, kOp, [&] { cpu::softmax_backward(problem); },
      [&] { cuda::softmax_backward(problem, stream); });
}

}  // namespace membound
