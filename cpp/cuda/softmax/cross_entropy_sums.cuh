// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sums over the rows of cross entropy, by a single block in a fixed order.
#include "cuda/row/cluster.cuh"
#include "cuda/softmax/cross_entropy_any.cuh"

namespace membound::cuda {

inline constexpr int kLossSumThreads = 1024;

// Sums in double, which a sum over many losses needs. The rows are strided over the threads.
template <class Of>
__device__ inline double sum_over_rows(std::int64_t rows, int round, const Of& of) {
  double sum = 0;
#pragma unroll 4
  for (std::int64_t row = threadIdx.x; row < rows; row += kLossSumThreads) sum += of(row);
  const double values[1] = {sum};
  return reduce_block<kLossSumThreads / kWarpLanes>(values, round, Sum());
}

// Runs before the rows if the gradient of a mean is wanted: writes dloss / (sum of the labels'
// weights) to problem.scale. Latency-bound.
template <class A>
__global__ void __launch_bounds__(kLossSumThreads)
    cross_entropy_scale_kernel(const __grid_constant__ CrossEntropyProblem p) {
  pdl_wait_and_launch();
  const double weights =
      sum_over_rows(p.rows, 0, [&](std::int64_t row) { return label_weight<A>(p, row); });
  if (threadIdx.x != 0) return;
  const double dloss =
      p.dloss.data == nullptr ? p.options.dloss : static_cast<const A*>(p.dloss.data)[0];
  *static_cast<A*>(p.scale) = static_cast<A>(dloss / weights);
}

// Runs after the rows: reduces their losses to problem.total and their z losses to problem.z_total.
// Latency-bound.
template <class A>
__global__ void __launch_bounds__(kLossSumThreads)
    cross_entropy_total_kernel(const __grid_constant__ CrossEntropyProblem p) {
  pdl_wait_and_launch();
  double weights = 1;
  if (p.is_mean()) {
    weights = sum_over_rows(p.rows, 0, [&](std::int64_t row) { return label_weight<A>(p, row); });
  }
  const double total =
      sum_over_rows(p.rows, 1, [&](std::int64_t row) { return row_number<A, false>(p.loss, row); });
  if (threadIdx.x == 0) *static_cast<A*>(p.total) = static_cast<A>(total / weights);
  if (p.z_total == nullptr) return;
  const double z_total = sum_over_rows(
      p.rows, 2, [&](std::int64_t row) { return row_number<A, false>(p.z_loss, row); });
  if (threadIdx.x == 0) *static_cast<A*>(p.z_total) = static_cast<A>(z_total / weights);
}

}  // namespace membound::cuda
