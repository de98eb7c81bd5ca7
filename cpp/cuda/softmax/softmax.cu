// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/softmax/softmax_kernel.cuh"

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
  p.scale_folded = problem.mask == nullptr && problem.scale > 1e-30 && problem.scale < 1e30;
  p.absent = absent_bits(problem.dtype);
  dispatch_floating(problem.dtype, "softmax", [&]<class T>() {
    p.slope = (p.scale_folded ? problem.scale : 1.0) * (sizeof(T) == 2 ? 1.4426950408889634 : 1.0);
    p.narrow_slope = static_cast<float>(p.slope);
    p.aligned = is_vectorisable<T>(p.x, problem.cols) && is_vectorisable<T>(p.out, problem.cols);
    bool done = false;
    if (p.scale_folded && problem.queries == 0 && !p.config.streamed()) {
      const Access access = register_access<T>({&p.x, &p.out}, problem.cols);
      dispatch_vectors<T>(p.config.vectors, [&]<int kVectors>() {
        done = launch_register_part<T, softmax_register_kernel<T, kVectors>,
                                    softmax_bulk_kernel<BulkStorage<T>, kVectors>>(
            access, shape, 1, stream, device, p);
      });
    }
    if (done) return;
    shape.shared_bytes = staged_bytes(p.config, 1, device);
    p.staged = shape.shared_bytes > 0;
    launch<softmax_any_kernel<StorageOf<T>>>(shape, stream, device, p);
  });
}

}  // namespace membound::cuda
