// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/softmax_backward_kernel.cuh"

namespace membound::cuda {

void softmax_backward(const SoftmaxBackwardProblem& problem, StreamView stream) {
  const int device = current_device();
  SoftmaxBackwardParams p{};
  p.dtype = problem.dtype;
  p.rows = problem.rows;
  p.cols = problem.cols;
  p.scale = problem.scale;
  p.config = tuning::softmax_backward_config(problem.rows, problem.cols,
                                             static_cast<int>(dtype_size(problem.dtype)),
                                             max_cluster_size(device));
  p.dy = {const_cast<void*>(problem.dy), problem.dy_rows, problem.dy_col_stride};
  p.y = {const_cast<void*>(problem.y), problem.y_rows, problem.y_col_stride};
  p.dx = {problem.dx, problem.dx_rows, problem.dx_col_stride};
  LaunchShape shape{p.config.blocks, p.config.threads, p.config.blocks_per_row};
  dispatch_floating(problem.dtype, "softmax_backward", [&]<class T>() {
    p.aligned = true;
    bool even = true;
    for (const PartArray* array : {&p.dy, &p.y, &p.dx}) {
      p.aligned = p.aligned && takes_chunks<T>(*array, problem.cols);
      even = even && array->rows.rank <= 1;
    }
    if (p.aligned && even && !p.config.streamed()) {
      launch<softmax_backward_held_kernel<StorageOf<T>>>(shape, stream, device, p);
      return;
    }
    shape.shared_bytes = staged_bytes(p.config, sizeof(T), 2, device);
    p.staged = shape.shared_bytes > 0;
    launch<softmax_backward_any_kernel<StorageOf<T>>>(shape, stream, device, p);
  });
}

}  // namespace membound::cuda
