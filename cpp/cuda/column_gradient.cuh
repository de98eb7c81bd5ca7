// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The end of the gradients that are summed over rows: their storage in any dtype, and the sum of
// partial rows.
#include <cstdint>

#include "cuda/cluster.cuh"
#include "cuda/columns.cuh"
#include "cuda/convert.cuh"
#include "cuda/reduce.cuh"
#include "membound/dtype.hpp"
#include "membound/stream.hpp"

namespace membound::cuda {

template <class W, class Accumulate>
__device__ inline void store_as(W* to, Accumulate sum, bool accumulate) {
  using Own = accumulate_t<W>;
  if (accumulate) sum += static_cast<Accumulate>(to_number(*to));
  *to = from_number<W>(static_cast<Own>(sum));
}

template <class Accumulate>
__device__ inline void store_gradient(const ColumnSums<Accumulate>& to, std::int64_t head,
                                      std::int64_t col, Accumulate sum, bool accumulate) {
  const std::int64_t offset = head * to.head_stride + col * to.stride;
  switch (to.dtype) {
    case DType::kFloat16: return store_as(static_cast<Float16*>(to.data) + offset, sum, accumulate);
    case DType::kBFloat16:
      return store_as(static_cast<BFloat16*>(to.data) + offset, sum, accumulate);
    case DType::kFloat32: return store_as(static_cast<float*>(to.data) + offset, sum, accumulate);
    default: return store_as(static_cast<double*>(to.data) + offset, sum, accumulate);
  }
}

template <class Accumulate>
struct PartialSumsParams {
  ColumnSums<Accumulate> sums[2];
  std::int64_t rows;
  std::int64_t cols;  // of all heads
  std::int64_t cols_of_head;
  int blocks_each;  // blocks of the first; set by the launch
  bool accumulate;
};
// Compiled once, in rms_norm_backward.cu. both: of two gradients.
template <class Accumulate>
void launch_column_sums(PartialSumsParams<Accumulate> sums, bool both, int device,
                        StreamView stream);

// The sums of partial rows of one or two gradients: a block takes 32 columns of one, each of its
// warps every 32nd row, then a warp the 32 sums of a column. Limited by latency.
template <class Accumulate>
__global__ void __launch_bounds__(kWarpLanes* kWarpLanes)
    partial_sums_kernel(const __grid_constant__ PartialSumsParams<Accumulate> p) {
  constexpr int kUnroll = 8;
  __shared__ Accumulate of_warps[kWarpLanes][kWarpLanes + 1];
  begin_overlapped();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int block = static_cast<int>(blockIdx.x);
  const bool second = block >= p.blocks_each;
  const ColumnSums<Accumulate>& to = p.sums[second];
  const std::int64_t first =
      static_cast<std::int64_t>(second ? block - p.blocks_each : block) * kWarpLanes;
  Accumulate sum = 0;
  for (std::int64_t row = warp; row < p.rows; row += kUnroll * kWarpLanes) {
    Accumulate some[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t at = row + i * kWarpLanes;
      some[i] = at < p.rows && first + lane < p.cols ? to.partials[at * p.cols + first + lane]
                                                     : Accumulate(0);
    }
    sum += reduce_array<kUnroll>(some, Sum());
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  const Accumulate total = reduce_warp(of_warps[lane][warp], Sum());
  if (lane == 0 && first + warp < p.cols) {
    const std::int64_t head = p.cols == p.cols_of_head ? 0 : (first + warp) / p.cols_of_head;
    store_gradient(to, head, first + warp - head * p.cols_of_head, total, p.accumulate);
  }
}

}  // namespace membound::cuda
