// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/softmax_kernel.cuh"

namespace membound::cuda {

void softmax(const SoftmaxProblem& problem, StreamView stream) {
  const int device = current_device();
  const auto size = static_cast<int>(dtype_size(problem.dtype));
  SoftmaxParams p{};
  p.problem = problem;
  p.config = tuning::softmax_config(problem.rows, problem.cols, size, max_cluster_size(device));
  p.x = part_array(problem.x, problem.x_rows, problem.x_col_stride, problem.rows, problem.cols,
                   problem.dtype);
  p.out = part_array(problem.out, problem.out_rows, problem.out_col_stride, problem.rows,
                     problem.cols, problem.dtype);
  LaunchShape shape{p.config.blocks, p.config.threads, p.config.blocks_per_row};
  const auto any = [&]<class T>() {
    shape.shared_bytes = staged_bytes(p.config, sizeof(T), 1, device);
    p.staged = shape.shared_bytes > 0;
    launch<softmax_any_kernel<T>>(shape, stream, device, p);
  };
  dispatch_floating(problem.dtype, "softmax", [&]<class T>() {
    p.aligned = takes_chunks<T>(p.x, problem.cols) && takes_chunks<T>(p.out, problem.cols);
    if constexpr (sizeof(T) == 8) {
      return any.template operator()<T>();  // limited by its exponentials
    } else {
      const bool plain = problem.mask == nullptr && problem.queries == 0 && problem.scale != 0;
      const Access access = held_access<T>({&p.x, &p.out}, problem.cols);
      if (access == Access::kAny || !plain || p.config.streamed()) {
        return any.template operator()<StorageOf<T>>();
      }
      p.absent = absent_bits(problem.dtype, problem.scale < 0);
      launch_held<softmax_held_kernel<T, Access::kAligned>,
                  softmax_held_kernel<T, Access::kShifted>>(access, shape, sizeof(T), stream,
                                                            device, p);
    }
  });
}

}  // namespace membound::cuda
