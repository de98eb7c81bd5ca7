// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/cross_entropy_kernel.cuh"

namespace membound::cuda {

void cross_entropy(const CrossEntropyProblem& problem, StreamView stream) {
  const int device = current_device();
  CrossEntropyParams p{};
  p.problem = problem;
  p.config = tuning::cross_entropy_config(problem.rows, problem.cols,
                                          static_cast<int>(dtype_size(problem.dtype)),
                                          max_cluster_size(device));
  p.logits = part_array(problem.logits, problem.logits_rows, problem.logits_col_stride,
                        problem.rows, problem.cols, problem.dtype);
  p.dlogits = part_array(problem.dlogits, problem.dlogits_rows, problem.dlogits_col_stride,
                         problem.rows, problem.cols, problem.dtype);
  p.capped = problem.options.softcap < std::numeric_limits<double>::infinity();
  LaunchShape shape{p.config.blocks, p.config.threads, p.config.blocks_per_row};
  dispatch_floating(problem.dtype, "cross_entropy", [&]<class T>() {
    p.aligned = takes_chunks<T>(p.logits, problem.cols) &&
                (problem.dlogits == nullptr || takes_chunks<T>(p.dlogits, problem.cols));
    if constexpr (sizeof(T) < 8) {  // those of 8 bytes are limited by their exponentials
      const Access access = held_access<T>({&p.logits, &p.dlogits}, problem.cols);
      if (access != Access::kAny && !p.capped && !p.config.streamed()) {
        p.absent = absent_bits(problem.dtype, false);
        return launch_held<cross_entropy_held_kernel<T, Access::kAligned>,
                           cross_entropy_held_kernel<T, Access::kShifted>>(access, shape, sizeof(T),
                                                                           stream, device, p);
      }
    }
    shape.shared_bytes = staged_bytes(p.config, sizeof(T), 1, device);
    p.staged = shape.shared_bytes > 0;
    launch<cross_entropy_any_kernel<StorageOf<T>>>(shape, stream, device, p);
  });
}

}  // namespace membound::cuda
