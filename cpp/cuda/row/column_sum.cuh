// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The last step of gradients that are summed over rows: a kernel that adds up partial rows, and
// stores in any dtype.
#include <cstdint>

#include "cuda/row/affine.cuh"
#include "cuda/row/cluster.cuh"
#include "cuda/row/convert.cuh"
#include "cuda/row/reduce.cuh"
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
  int blocks_each;  // of the first gradient; set by the launch
  bool accumulate;
  bool paired = false;    // each row is the sum of two in memory
  bool discards = false;  // discards partials once they are read; set by the launch
};
inline constexpr int kPartialRowsInFlight = 8;  // in flight per thread
// Warps of a block of partial_sums_kernel. With 32 warps, several columns per lane spill.
template <int kColumns>
inline constexpr int kMaxSumWarps = kColumns > 1 ? kWarpLanes / 2 : kWarpLanes;
// Compiled once, in rms_norm_backward.cu. both: whether there are two gradients.
template <class Accumulate>
void launch_column_sums(PartialSumsParams<Accumulate> sums, bool both, int device,
                        StreamView stream);

// Discards a line of L2 that was read for the last time, so that it is not written to memory. line:
// aligned to kLineBytes, and of that size.
inline constexpr int kLineBytes = 128;
__device__ inline void discard_line(const void* line) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(line) : "memory");
#endif
}

// Sums the partial rows of one or two gradients. A block takes 32 columns of one gradient. A warp
// reads kColumns rows at a time with kColumns columns per lane, and has eight such sets in flight;
// it adds up its rows by shuffles, and the block its warps through shared memory, one sum per warp
// and column. Limited by latency; with one column per lane and 32 warps it was limited by
// instructions.
template <class Accumulate, int kColumns, bool kPaired>
__global__ void __launch_bounds__(kWarpLanes* kMaxSumWarps<kColumns>)
    partial_sums_kernel(const __grid_constant__ PartialSumsParams<Accumulate> p) {
  constexpr int kUnroll = kPartialRowsInFlight;
  constexpr int kLanesOfRow = kWarpLanes / kColumns;
  struct alignas(kColumns * sizeof(Accumulate)) ColumnVector {
    Accumulate at[kColumns];
  };
  __shared__ ColumnVector of_warps[kMaxSumWarps<kColumns>][kLanesOfRow];
  pdl_wait_and_launch();
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarpLanes;
  const int block = static_cast<int>(blockIdx.x);
  const bool second = block >= p.blocks_each;
  const ColumnSums<Accumulate>& to = p.sums[second];
  const std::int64_t first =
      static_cast<std::int64_t>(second ? block - p.blocks_each : block) * kWarpLanes;
  const std::int64_t col = first + lane % kLanesOfRow * kColumns;
  const int step = warps * kColumns;
  const Accumulate* from = to.partials + col;
  const auto partials_at = [&](std::int64_t row) {
    return *reinterpret_cast<const ColumnVector*>(from + row * p.cols);
  };
  ColumnVector sum{};
  for (std::int64_t row = warp * kColumns + lane / kLanesOfRow; row < p.rows;
       row += kUnroll * step) {
    ColumnVector some[kUnroll] = {};
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) {
      const std::int64_t at = row + i * step;
      if (at < p.rows && col < p.cols) some[i] = partials_at(kPaired ? 2 * at : at);
    }
    if constexpr (kPaired) {
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) {
        const std::int64_t at = row + i * step;
        if (at >= p.rows || col >= p.cols) continue;
        const ColumnVector second_of_pair = partials_at(2 * at + 1);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) some[i].at[c] += second_of_pair.at[c];
      }
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      Accumulate of_rows[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i) of_rows[i] = some[i].at[c];
      sum.at[c] += reduce_array<kUnroll>(of_rows, Sum());
    }
  }
#pragma unroll
  for (int offset = kLanesOfRow; offset < kWarpLanes; offset *= 2) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum.at[c] += shuffle_xor(sum.at[c], offset);
  }
  if (lane < kLanesOfRow) of_warps[warp][lane] = sum;
  __syncthreads();
  if (p.discards && lane % kLanesOfRow == 0) {
    const std::int64_t rows = kPaired ? 2 * p.rows : p.rows;
    for (std::int64_t row = warp * kColumns + lane / kLanesOfRow; row < rows; row += step) {
      discard_line(from + row * p.cols);
    }
  }
  if (warp > 0 || first + lane >= p.cols) return;
  Accumulate total = 0;
#pragma unroll 4
  for (int i = 0; i < warps; ++i) total += of_warps[i][lane / kColumns].at[lane % kColumns];
  const std::int64_t head = p.cols == p.cols_of_head ? 0 : (first + lane) / p.cols_of_head;
  store_gradient(to, head, first + lane - head * p.cols_of_head, total, p.accumulate);
}

}  // namespace membound::cuda
