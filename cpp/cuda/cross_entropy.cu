// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/cross_entropy_framed.cuh"

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
  p.absent = absent_bits(problem.dtype);
  p.narrow = cross_entropy_terms<float>(problem);
  p.wide = cross_entropy_terms<double>(problem);
  p.early = p.config.blocks <= tuning::kCrossEntropyEarlyBlocks;
  LaunchShape shape{p.config.blocks, p.config.threads, p.config.blocks_per_row};
  dispatch_floating(problem.dtype, "cross_entropy", [&]<class T>() {
    p.aligned = takes_chunks<T>(p.logits, problem.cols) &&
                (problem.dlogits == nullptr || takes_chunks<T>(p.dlogits, problem.cols));
    const Access access = held_access<T>({&p.logits, &p.dlogits}, problem.cols);
    bool plain = !p.capped && !p.config.streamed() && problem.labels.tokens.rank <= 1;
    for (const RowNumbers* one : {&problem.dloss, &problem.loss, &problem.lse}) {
      plain = plain && (one->data == nullptr || one->rows.rank <= 1);
    }
    if (plain) {
      dispatch_chunks<T>(p.config.chunks, [&]<int kChunks>() {
        plain = launch_held<T, cross_entropy_held_kernel<T, kChunks>,
                            cross_entropy_framed_kernel<FramedStorage<T>, kChunks>>(
            access, shape, 1, stream, device, p);
      });
    }
    if (plain) return;
    shape.shared_bytes = staged_bytes(p.config, 1, device);
    p.staged = shape.shared_bytes > 0;
    launch<cross_entropy_any_kernel<StorageOf<T>>>(shape, stream, device, p);
  });
}

}  // namespace membound::cuda
