// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/softmax/cross_entropy_any.cuh"
#include "cuda/softmax/cross_entropy_bulk.cuh"
#include "cuda/softmax/cross_entropy_sums.cuh"

namespace membound::cuda {

namespace {

void launch_rows(const CrossEntropyProblem& problem, StreamView stream, int device) {
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
  p.weighs_columns = problem.weight.data != nullptr && problem.options.label_smoothing != 0;
  p.narrow = cross_entropy_terms<float>(problem);
  p.wide = cross_entropy_terms<double>(problem);
  p.early = p.config.blocks <= tuning::kCrossEntropyEarlyBlocks;
  LaunchShape shape{p.config.blocks, p.config.threads, p.config.blocks_per_row};
  dispatch_floating(problem.dtype, "cross_entropy", [&]<class T>() {
    p.aligned = is_vectorisable<T>(p.logits, problem.cols) &&
                (problem.dlogits == nullptr || is_vectorisable<T>(p.dlogits, problem.cols));
    const Access access = register_access<T>({&p.logits, &p.dlogits}, problem.cols);
    bool plain = !p.capped && !p.config.streamed() && problem.labels.tokens.rank <= 1 &&
                 problem.weight.data == nullptr && problem.predictions.data == nullptr &&
                 problem.entropy.data == nullptr;
    for (const RowNumbers* one :
         {&problem.dloss, &problem.loss, &problem.lse, &problem.lse_low, &problem.z_loss}) {
      plain = plain && (one->data == nullptr || one->rows.rank <= 1);
    }
    if (plain) {
      dispatch_vectors<T>(p.config.vectors, [&]<int kVectors>() {
        plain = launch_register_part<T, cross_entropy_register_kernel<T, kVectors>,
                                     cross_entropy_bulk_kernel<BulkStorage<T>, kVectors>>(
            access, shape, 1, stream, device, p);
      });
    }
    if (plain) return;
    shape.shared_bytes = staged_bytes(p.config, 1, device);
    p.staged = shape.shared_bytes > 0;
    launch<cross_entropy_any_kernel<StorageOf<T>>>(shape, stream, device, p);
  });
}

template <class A>
void launch_all(CrossEntropyProblem p, StreamView stream, int device) {
  const LaunchShape one_block{1, kLossSumThreads};
  const CrossEntropyProblem given = p;
  if (p.rows > 0) {
    if (p.is_mean() && p.dlogits != nullptr) {
      launch<cross_entropy_scale_kernel<A>>(one_block, stream, device, given);
      p.dloss = {p.scale, {}};
      p.dloss.rows.strides[0] = 0;  // one value for all rows
    }
    launch_rows(p, stream, device);
  }
  if (p.total != nullptr) {
    launch<cross_entropy_total_kernel<A>>(one_block, stream, device, given);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& problem, StreamView stream) {
  const int device = current_device();
  problem.dtype == DType::kFloat64 ? launch_all<double>(problem, stream, device)
                                   : launch_all<float>(problem, stream, device);
}

}  // namespace membound::cuda
