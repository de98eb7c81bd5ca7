// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/softmax/softmax_backward_kernel.cuh"

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
  const auto array = [&](const void* data, const RowLayout& rows, std::int64_t col_stride) {
    return part_array(data, rows, col_stride, problem.rows, problem.cols, problem.dtype);
  };
  p.dy = array(problem.dy, problem.dy_rows, problem.dy_col_stride);
  p.y = array(problem.y, problem.y_rows, problem.y_col_stride);
  p.dx = array(problem.dx, problem.dx_rows, problem.dx_col_stride);
  LaunchShape shape{p.config.blocks, p.config.threads, p.config.blocks_per_row};
  dispatch_floating(problem.dtype, "softmax_backward", [&]<class T>() {
    const Access access = register_access<T>({&p.dy, &p.y, &p.dx}, problem.cols);
    constexpr int kVectors = sizeof(T) == 2 ? tuning::kFewVectors : tuning::kManyVectors;
    if (!p.config.streamed() &&
        launch_register_part<T, softmax_backward_register_kernel<T, kVectors>,
                             softmax_backward_bulk_kernel<BulkStorage<T>, kVectors>>(
            access, shape, 2, stream, device, p)) {
      return;
    }
    p.aligned = true;
    for (const PartArray* one : {&p.dy, &p.y, &p.dx}) {
      p.aligned = p.aligned && is_vectorisable<T>(*one, problem.cols);
    }
    shape.shared_bytes = staged_bytes(p.config, 2, device);
    p.staged = shape.shared_bytes > 0;
    launch<softmax_backward_any_kernel<StorageOf<T>>>(shape, stream, device, p);
  });
}

}  // namespace membound::cuda
