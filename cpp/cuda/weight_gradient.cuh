// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The end of a gradient that is summed over rows: its storage in any dtype, and the sum of partial
// rows.
#include <cstdint>

#include "cuda/cluster.cuh"
#include "cuda/convert.cuh"
#include "cuda/reduce.cuh"
#include "membound/dtype.hpp"

namespace membound::cuda {

template <class W, class Accumulate>
__device__ inline void store_as(W* to, Accumulate sum, bool accumulate) {
  using Own = accumulate_t<W>;
  if (accumulate) sum += static_cast<Accumulate>(to_number(*to));
  *to = from_number<W>(static_cast<Own>(sum));
}

template <class Accumulate>
__device__ inline void store_weight_gradient(void* data, DType dtype, std::int64_t offset,
                                             Accumulate sum, bool accumulate) {
  switch (dtype) {
    case DType::kFloat16: return store_as(static_cast<Float16*>(data) + offset, sum, accumulate);
    case DType::kBFloat16: return store_as(static_cast<BFloat16*>(data) + offset, sum, accumulate);
    case DType::kFloat32: return store_as(static_cast<float*>(data) + offset, sum, accumulate);
    default: return store_as(static_cast<double*>(data) + offset, sum, accumulate);
  }
}

template <class Accumulate>
struct PartialSumsParams {
  const Accumulate* partials;  // [rows][cols]
  void* sums;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t stride;  // of sums
  DType dtype;          // of sums
  bool accumulate;
};

// The sum of partial rows: a block takes 32 columns, each of its warps every 32nd row, then a warp
// the 32 sums of a column. Limited by latency.
template <class Accumulate>
__global__ void __launch_bounds__(kWarpLanes* kWarpLanes)
    partial_sums_kernel(const __grid_constant__ PartialSumsParams<Accumulate> p) {
  constexpr int kUnroll = 8;
  __shared__ Accumulate of_warps[kWarpLanes][kWarpLanes + 1];
  begin_overlapped();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWarpLanes;
  Accumulate sum = 0;
  for (std::int64_t row = warp; row < p.rows; row += kUnroll * kWarpLanes) {
    Accumulate some[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t at = row + i * kWarpLanes;
      some[i] = at < p.rows && first + lane < p.cols ? p.partials[at * p.cols + first + lane]
                                                     : Accumulate(0);
    }
    sum += reduce_array<kUnroll>(some, Sum());
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  const Accumulate total = reduce_warp(of_warps[lane][warp], Sum());
  if (lane == 0 && first + warp < p.cols) {
    store_weight_gradient(p.sums, p.dtype, (first + warp) * p.stride, total, p.accumulate);
  }
}

}  // namespace membound::cuda
