// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Matrix products of 16-bit floats on tensor cores, sums in float32.
#include "cuda/array/index.cuh"
#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "cuda/row/convert.cuh"

namespace membound::cuda {

inline constexpr int kTensorTile = 128;  // rows and columns of a block
inline constexpr int kTensorInner = 32;  // of a stage
inline constexpr int kTensorStages = 4;
inline constexpr int kTensorThreads = 128;  // four warps, each 64 x 64
inline constexpr int kTensorStageItems = kTensorTile * kTensorInner;
inline constexpr std::size_t kTensorShared = 2 * kTensorStages * kTensorStageItems * 2;

// A matrix whose elements are adjacent along one dimension, in vectors of eight.
struct TensorMatrix {
  const std::uint16_t* data;
  std::int64_t leading;  // stride of the other dimension
};

struct TensorParams {
  TensorMatrix a, b;
  std::uint16_t* result;
  std::int64_t result_strides[2];
  std::int64_t rows, columns, inner;
  Divider row_tiles, column_tiles;
  ArrayIndex batch;
  std::int64_t batch_strides[3][kMaxRank];
};

// A stage of one matrix. kInnerAdjacent: kTensorTile lines of kTensorInner elements, else
// kTensorInner lines of kTensorTile. The 16-byte vectors of a line are permuted so that eight lines
// are read without bank conflicts. A thread copies four vectors, whose lines are 2048 bytes apart.
template <bool kInnerAdjacent>
struct TensorTile {
  static constexpr int kLineBytes = 2 * (kInnerAdjacent ? kTensorInner : kTensorTile);
  static constexpr int kVectors = kLineBytes / 16, kApart = 2048 / kLineBytes;

  const std::uint16_t* data;
  const std::uint16_t* from;
  std::int64_t leading;
  int line, vector, outer_left;  // elements of the outer dimension from the thread's first on

  __device__ TensorTile(const TensorMatrix& matrix, std::int64_t outer, std::int64_t outer_end)
      : data(matrix.data), leading(matrix.leading) {
    line = static_cast<int>(threadIdx.x) / kVectors;
    vector = static_cast<int>(threadIdx.x) % kVectors;
    const std::int64_t first = outer + (kInnerAdjacent ? line : vector * 8);
    outer_left = static_cast<int>(max(min(outer_end - first, std::int64_t{kTensorTile}), 0l));
    from = data + (kInnerAdjacent ? first * leading + vector * 8 : line * leading + first);
  }
  // Zeros beyond the edges of the matrix. inner_left: elements of the inner dimension.
  __device__ void load(unsigned char* to, int inner_left) {
    const int turned = kInnerAdjacent ? vector ^ (line >> 1 & 3) : vector ^ (line & 7);
    unsigned char* const first = to + line * kLineBytes + turned * 16;
    const int items = kInnerAdjacent ? min(max(inner_left - vector * 8, 0), 8) : min(outer_left, 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_there =
          kInnerAdjacent ? i * kApart < outer_left : line + i * kApart < inner_left;
      const int bytes = is_there ? 2 * items : 0;
      copy_async(reinterpret_cast<uint4*>(first + i * 2048),
                 reinterpret_cast<const uint4*>(bytes > 0 ? from + i * kApart * leading : data),
                 bytes);
    }
    from += kInnerAdjacent ? std::int64_t{kTensorInner} : kTensorInner * leading;
  }

  // Where a lane's line of 8 x 8 matrices begins, and the matrices of fragment i at inner k.
  static __device__ std::uint32_t lane_offset(int outer, int outer_half, int inner_half, int row) {
    return kInnerAdjacent
               ? (outer + outer_half * 8 + row) * kLineBytes + (inner_half ^ (row >> 1 & 3)) * 16
               : (inner_half * 8 + row) * kLineBytes + outer * 2 + (outer_half ^ row) * 16;
  }
  static __device__ std::uint32_t fragment(std::uint32_t lane, int i, int k) {
    return kInnerAdjacent ? (lane + i * 16 * kLineBytes) ^ (k * 2)
                          : (lane ^ (i * 32)) + k * kLineBytes;
  }
};

template <bool kTransposed>
__device__ inline void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
#if MEMBOUND_HAS_ASYNC_COPY
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  }
#endif
}

template <class T>
__device__ inline void multiply_add(float (&sums)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
#if MEMBOUND_HAS_ASYNC_COPY
  if constexpr (kDTypeOf<T> == DType::kFloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#endif
}

// Blocks are numbered in bands of eight tile rows, so that the tiles at work share rows and columns
// in L2.
__device__ inline void tile_of_block(const TensorParams& p, std::int64_t& batch, std::int64_t& row,
                                     std::int64_t& column) {
  constexpr std::int64_t kBand = 8;
  const std::int64_t tiles = p.row_tiles.extent * p.column_tiles.extent;
  batch = p.batch.size == 1 ? 0 : blockIdx.x / tiles;
  const std::int64_t tile = blockIdx.x - batch * tiles;
  const std::int64_t band = p.column_tiles.quotient(tile) / kBand;
  const std::int64_t height = min(kBand, p.row_tiles.extent - band * kBand);
  const std::int64_t inside = tile - band * kBand * p.column_tiles.extent;
  row = (band * kBand + inside % height) * kTensorTile;
  column = inside / height * kTensorTile;
}

// A block computes a tile of 128 x 128. Shared memory: kTensorStages stages of both matrices,
// filled by asynchronous copies. Limited by the rate of mma.sync.
template <class T, bool kInnerAdjacentA, bool kInnerAdjacentB>
__global__ void __launch_bounds__(kTensorThreads, 2)
    matmul_tensor_kernel(const __grid_constant__ TensorParams p) {
#if MEMBOUND_HAS_ASYNC_COPY
  using TileA = TensorTile<kInnerAdjacentA>;
  using TileB = TensorTile<kInnerAdjacentB>;
  extern __shared__ __align__(128) unsigned char shared[];
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  pdl_wait_and_launch();
  std::int64_t batch, row, column;
  tile_of_block(p, batch, row, column);
  std::int64_t at[3];
  p.batch.offsets(batch, p.batch_strides, at);
  TileA a({p.a.data + at[0], p.a.leading}, row, p.rows);
  TileB b({p.b.data + at[1], p.b.leading}, column, p.columns);
  const int lane = threadIdx.x % kWarpLanes, warp = threadIdx.x / kWarpLanes;
  const int warp_row = warp / 2 * 64, warp_column = warp % 2 * 64;
  const int steps = static_cast<int>((p.inner + kTensorInner - 1) / kTensorInner);
  constexpr std::uint32_t kStageBytes = kTensorStageItems * 2;
  const auto load = [&](int step) {
    unsigned char* to = shared + step % kTensorStages * 2 * kStageBytes;
    const std::int64_t left = p.inner - std::int64_t{step} * kTensorInner;
    const int inner_left = static_cast<int>(min(left, std::int64_t{kTensorInner}));
    a.load(to, inner_left);
    b.load(to + kStageBytes, inner_left);
  };
#pragma unroll
  for (int step = 0; step < kTensorStages - 1; ++step) {
    if (step < steps) load(step);
    commit_copies();
  }
  const int matrix = lane / 8;
  const std::uint32_t lane_a =
      base + TileA::lane_offset(warp_row, matrix & 1, matrix >> 1, lane % 8);
  const std::uint32_t lane_b =
      base + kStageBytes + TileB::lane_offset(warp_column, matrix >> 1, matrix & 1, lane % 8);
  float sums[4][8][4] = {};
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<kTensorStages - 2>();
    __syncthreads();
    if (step + kTensorStages - 1 < steps) load(step + kTensorStages - 1);
    commit_copies();
    const std::uint32_t stage = step % kTensorStages * 2 * kStageBytes;
#pragma unroll
    for (int k = 0; k < kTensorInner; k += 16) {
      std::uint32_t fragments_a[4][4], fragments_b[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        load_matrices<!kInnerAdjacentA>(fragments_a[i], TileA::fragment(lane_a + stage, i, k));
#pragma unroll
      for (int j = 0; j < 4; ++j)
        load_matrices<!kInnerAdjacentB>(fragments_b[j], TileB::fragment(lane_b + stage, j, k));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j)
          multiply_add<T>(sums[i][j], fragments_a[i], fragments_b[j / 2][j % 2 * 2],
                          fragments_b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
  const bool pairs = p.result_strides[1] == 1 && p.result_strides[0] % 2 == 0 && at[2] % 2 == 0 &&
                     reinterpret_cast<std::uintptr_t>(p.result) % 4 == 0;
  const int r = warp_row + lane / 4, c = warp_column + lane % 4 * 2;
  std::uint16_t* const to =
      p.result + at[2] + row * p.result_strides[0] + column * p.result_strides[1];
  if (pairs && row + kTensorTile <= p.rows && column + kTensorTile <= p.columns) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint16_t* const line = to + (r + i * 8) * p.result_strides[0] + c;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float* pair = sums[i / 2][j] + i % 2 * 2;
        *reinterpret_cast<std::uint32_t*>(line + j * 8) =
            from_number<T>(pair[0]).bits | std::uint32_t{from_number<T>(pair[1]).bits} << 16;
      }
    }
    return;
  }
  // At the edges the sums go through shared memory, element by element.
  wait_for_copies<0>();
  __syncthreads();
  auto* const tile = reinterpret_cast<float*>(shared);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float* const at_tile = tile + (r + i * 8) * kTensorTile + c + j * 8;
      at_tile[0] = sums[i / 2][j][i % 2 * 2];
      at_tile[1] = sums[i / 2][j][i % 2 * 2 + 1];
    }
  }
  __syncthreads();
  const int rows = static_cast<int>(min(p.rows - row, std::int64_t{kTensorTile}));
  if (column + threadIdx.x >= p.columns) return;
#pragma unroll 1
  for (int i = 0; i < rows; ++i) {
    to[i * p.result_strides[0] + threadIdx.x * p.result_strides[1]] =
        from_number<T>(tile[i * kTensorTile + threadIdx.x]).bits;
  }
#endif
}

template <class T, bool kInnerAdjacentA, bool kInnerAdjacentB>
void launch_matmul_tensor(const TensorParams& p, StreamView stream) {
  launch<matmul_tensor_kernel<T, kInnerAdjacentA, kInnerAdjacentB>>(
      {p.row_tiles.extent * p.column_tiles.extent * p.batch.size, kTensorThreads, 1, kTensorShared},
      stream, current_device(), p);
}

}  // namespace membound::cuda
