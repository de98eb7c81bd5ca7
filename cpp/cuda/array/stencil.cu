// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
// Stencils along an axis, and the gradient of their weights. Elements are read once into shared
// memory, where neighbouring weights find them. Compiled without contraction to FMA: results have
// the CPU's bits, as weights are added in their order.
#include <limits>

#include "cuda/array/index.cuh"
#include "cuda/array/stencil_config.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/row/cluster.cuh"
#include "ops/array/problems.hpp"

namespace membound::cuda {

namespace {

using tuning::kStencilGroup;
using tuning::kStencilRows;
using tuning::kStencilShared;
using tuning::kStencilThreads;
using tuning::StencilConfig;

template <class T>
struct StencilParams {
  const T* source;
  const T* weights;
  T* result;  // of gradients: what is read
  std::int64_t origin, outer, length, result_length, inner;
  int row_step, line_step;  // in elements of the source; -1: more than 32 bits in a tile
  int taps;
  array::Boundary boundary;
  StencilConfig config;
  Divider row_tiles, column_tiles;
  std::int64_t tiles;           // all of them
  std::int64_t tiles_of_block;  // of gradients
  T* sums;                      // [weight][block]
};

// Up to four elements of padding after 32 ones: the threads of a warp, whose windows lie 8 rows
// apart, read from different banks.
inline constexpr int kStencilPadded = kStencilShared + kStencilShared / 8;
template <bool kPads>
__device__ inline int padded(int element, int width_bits) {
  return kPads && width_bits < 5 ? element + (element >> 5 << min(width_bits, 2)) : element;
}

// Where a tile is: its first line, row and column of results.
struct TilePlace {
  std::int64_t line, row, column;
};
template <class T>
__device__ inline TilePlace place_of(const StencilParams<T>& p, std::int64_t tile) {
  const std::int64_t column_tile = p.column_tiles.quotient(tile);
  const std::int64_t line_tile = p.row_tiles.quotient(column_tile);
  return {line_tile << p.config.line_bits,
          (column_tile - line_tile * p.row_tiles.extent) << p.config.row_bits,
          (tile - column_tile * p.column_tiles.extent) << p.config.width_bits};
}

// Out of line: two divisions, in the tiles at the ends alone.
__device__ __noinline__ std::int64_t row_beyond(array::Boundary boundary, std::int64_t row,
                                                std::int64_t length) {
  return array::boundary_index(boundary, row, length);
}

// Loads what `taps` weights from `first_tap` on meet in a tile; each line has room for two tiles of
// rows. The loads of a thread are issued together: the rows of the results, then those beyond them.
template <bool kPads, class T>
__device__ void load_tile(const StencilParams<T>& p, T* tile, const TilePlace& place, int first_tap,
                          int taps) {
  const StencilConfig& config = p.config;
  const int width_bits = config.width_bits, line_bits = config.row_bits + width_bits;
  const int rows = config.rows() + taps - 1, column_mask = config.width() - 1;
  const std::int64_t top = place.row + first_tap + p.origin;
  const bool is_inside = p.row_step >= 0 && top >= 0 && top + rows <= p.length &&
                         place.line + config.lines() <= p.outer &&
                         place.column + config.width() <= p.inner;
  if (!is_inside) {
#pragma unroll 1
    for (int element = threadIdx.x; element < kStencilShared; element += kStencilThreads) {
      const int row = (element & ((2 << line_bits) - 1)) >> width_bits;
      const std::int64_t line = place.line + (element >> (line_bits + 1));
      const std::int64_t column = place.column + (element & column_mask);
      if (row >= rows) continue;
      T value = T(0);
      std::int64_t at = top + row;
      if (at < 0 || at >= p.length) at = row_beyond(p.boundary, at, p.length);
      if (at >= 0 && line < p.outer && column < p.inner)
        value = p.source[(line * p.length + at) * p.inner + column];
      tile[padded<kPads>(element, width_bits)] = value;
    }
    return;
  }
  const T* from = p.source + (place.line * p.length + top) * p.inner + place.column;
  T values[kStencilRows];
#pragma unroll
  for (int i = 0; i < kStencilRows; ++i) {
    const int element = threadIdx.x + i * kStencilThreads;
    const int row = (element & ((1 << line_bits) - 1)) >> width_bits;
    values[i] =
        from[(element >> line_bits) * p.line_step + row * p.row_step + (element & column_mask)];
  }
  const int beyond_bits = taps > 2 ? 32 - __clz(taps - 2) : 0;
  const int beyond = taps > 1 ? config.lines() << (beyond_bits + width_bits) : 0;
#pragma unroll 1
  for (int element = threadIdx.x; element < beyond; element += kStencilThreads) {
    const int row = (element >> width_bits) & ((1 << beyond_bits) - 1);
    if (row >= taps - 1) continue;
    const int line = element >> (beyond_bits + width_bits), column = element & column_mask;
    const int to = (line << (line_bits + 1)) + (config.rows() + row << width_bits) + column;
    tile[padded<kPads>(to, width_bits)] =
        from[line * p.line_step + (config.rows() + row) * p.row_step + column];
  }
#pragma unroll
  for (int i = 0; i < kStencilRows; ++i) {
    const int element = threadIdx.x + i * kStencilThreads;
    tile[padded<kPads>(element + (element >> line_bits << line_bits), width_bits)] = values[i];
  }
}

// A thread's column of a tile: kStencilRows results from `row` on.
struct ThreadPlace {
  int line, row, column;
};
__device__ inline ThreadPlace thread_place(const StencilConfig& config) {
  const int group = static_cast<int>(threadIdx.x) >> config.width_bits;
  const int groups_bits = config.row_bits - 3;
  static_assert(kStencilRows == 8);
  return {group >> groups_bits, (group & ((1 << groups_bits) - 1)) * kStencilRows,
          static_cast<int>(threadIdx.x) & (config.width() - 1)};
}

// The elements that the weights of a group meet in a thread's rows.
template <class T>
struct Window {
  T at[kStencilRows + kStencilGroup - 1];

  // Reads rows `from` to kStencilRows + kStencilGroup - 1 of the window that begins at `row`.
  __device__ void read(const T* tile, const StencilConfig& config, const ThreadPlace& place,
                       int row, int from) {
    const int first = ((place.line << (config.row_bits + 1)) + row) << config.width_bits;
#pragma unroll
    for (int i = 0; i < kStencilRows + kStencilGroup - 1; ++i) {
      if (i >= from)
        at[i] =
            tile[padded<true>(first + (i << config.width_bits) + place.column, config.width_bits)];
    }
  }
  __device__ void advance() {
#pragma unroll
    for (int i = 0; i < kStencilRows - 1; ++i) at[i] = at[i + kStencilGroup];
  }
};

// A thread has kStencilRows results of one tile in registers: neighbours along the axis, which
// share what they read, or where the axis is the last one (kAlongLast) as far apart as there are
// threads, so that those of a warp read and write neighbours. Shared memory: two tiles.
// Memory-bound while there are few weights.
template <class T, bool kAlongLast>
__global__ void __launch_bounds__(kStencilThreads)
    stencil_kernel(const __grid_constant__ StencilParams<T> p) {
  __shared__ T tile[kStencilPadded];
  pdl_wait_and_launch();
  const TilePlace place = place_of(p, blockIdx.x);
  ThreadPlace own = thread_place(p.config);
  const int apart = kAlongLast ? p.config.rows() / kStencilRows : 1;
  if (kAlongLast) own.row /= kStencilRows;
  T sums[kStencilRows] = {};
#pragma unroll 1
  for (int first = 0; first < p.taps; first += p.config.taps) {
    const int taps = min(p.taps - first, p.config.taps);
    if (first > 0) __syncthreads();
    load_tile<!kAlongLast>(p, tile, place, first, taps);
    __syncthreads();
    Window<T> window;
    if constexpr (!kAlongLast) {
      window.read(tile, p.config, own, own.row - kStencilGroup, kStencilGroup);
      window.advance();
    }
    const T* from = tile + (own.line << (p.config.row_bits + 1)) + own.row;
#pragma unroll 1
    for (int tap = 0; tap < taps; tap += kStencilGroup) {
      if constexpr (!kAlongLast) window.read(tile, p.config, own, own.row + tap, kStencilRows - 1);
      T weights[kStencilGroup];
#pragma unroll
      for (int k = 0; k < kStencilGroup; ++k)
        weights[k] = tap + k < taps ? p.weights[first + tap + k] : T(0);
#pragma unroll
      for (int k = 0; k < kStencilGroup; ++k) {
        if (tap + k >= taps) break;
#pragma unroll
        for (int i = 0; i < kStencilRows; ++i) {
          const T value = kAlongLast ? from[i * apart + tap + k] : window.at[i + k];
          sums[i] = sums[i] + weights[k] * value;
        }
      }
      if constexpr (!kAlongLast) window.advance();
    }
  }
  const std::int64_t line = place.line + own.line, column = place.column + own.column;
  const std::int64_t row = place.row + own.row;
  if (line >= p.outer || column >= p.inner) return;
  T* const to = p.result + (line * p.result_length + row) * p.inner + column;
#pragma unroll
  for (int i = 0; i < kStencilRows; ++i) {
    if (row + i * apart < p.result_length) to[i * apart * p.inner] = sums[i];
  }
}

// Sums for kStencilGroup weights over some tiles, in registers, then over the threads by a fixed
// tree. Shared memory: two tiles.
template <class T>
__global__ void __launch_bounds__(kStencilThreads)
    stencil_dots_kernel(const __grid_constant__ StencilParams<T> p) {
  constexpr int kWarps = kStencilThreads / kWarpLanes;
  __shared__ T tile[kStencilPadded];
  __shared__ T of_warps[kStencilGroup][kWarps];
  pdl_wait_and_launch();
  const std::int64_t blocks = (p.tiles + p.tiles_of_block - 1) / p.tiles_of_block;
  const std::int64_t group = blockIdx.x / blocks, block = blockIdx.x - group * blocks;
  const int first = static_cast<int>(group) * kStencilGroup;
  const int taps = min(p.taps - first, kStencilGroup);
  const ThreadPlace own = thread_place(p.config);
  T sums[kStencilGroup] = {};
  const std::int64_t end = min((block + 1) * p.tiles_of_block, p.tiles);
#pragma unroll 1
  for (std::int64_t at = block * p.tiles_of_block; at < end; ++at) {
    const TilePlace place = place_of(p, at);
    load_tile<true>(p, tile, place, first, taps);
    const std::int64_t line = place.line + own.line, column = place.column + own.column;
    const std::int64_t row = place.row + own.row;
    const bool is_there = line < p.outer && column < p.inner;
    const T* from = p.result + (line * p.result_length + row) * p.inner + column;
    T gradients[kStencilRows];
#pragma unroll
    for (int i = 0; i < kStencilRows; ++i)
      gradients[i] = is_there && row + i < p.result_length ? from[i * p.inner] : T(0);
    __syncthreads();
    Window<T> window;
    window.read(tile, p.config, own, own.row, 0);
#pragma unroll
    for (int k = 0; k < kStencilGroup; ++k) {
      if (k >= taps) break;
#pragma unroll
      for (int i = 0; i < kStencilRows; ++i) {
        // Beyond the results the window may hold anything.
        if (is_there && row + i < p.result_length) sums[k] += gradients[i] * window.at[i + k];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < kStencilGroup; ++k) {
    for (int offset = kWarpLanes / 2; offset > 0; offset /= 2)
      sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], offset);
    if (threadIdx.x % kWarpLanes == 0) of_warps[k][threadIdx.x / kWarpLanes] = sums[k];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= taps) return;
  T total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += of_warps[threadIdx.x][warp];
  p.sums[(first + threadIdx.x) * blocks + block] = total;
}

template <class T>
StencilParams<T> stencil_params(const ArrayStencil& problem) {
  StencilParams<T> p;
  p.source = static_cast<const T*>(problem.source);
  p.weights = static_cast<const T*>(problem.weights);
  p.result = static_cast<T*>(problem.result);
  p.origin = problem.origin;
  p.outer = problem.outer;
  p.length = problem.length;
  p.result_length = problem.result_length;
  p.inner = problem.inner;
  p.taps = static_cast<int>(problem.taps);
  p.boundary = problem.boundary;
  p.config = tuning::stencil_config(problem.result_length, problem.inner);
  const std::int64_t line_step = p.config.lines() > 1 ? problem.length * problem.inner : 0;
  const bool is_small = line_step * p.config.lines() + 2 * p.config.rows() * problem.inner <=
                        std::numeric_limits<int>::max();
  p.row_step = is_small ? static_cast<int>(problem.inner) : -1;
  p.line_step = is_small ? static_cast<int>(line_step) : -1;
  const auto tiles = [](std::int64_t extent, int of) { return (extent + of - 1) / of; };
  p.row_tiles = divider_of(tiles(problem.result_length, p.config.rows()));
  p.column_tiles = divider_of(tiles(problem.inner, p.config.width()));
  p.tiles = tiles(problem.outer, p.config.lines()) * p.row_tiles.extent * p.column_tiles.extent;
  p.tiles_of_block = tuning::stencil_tiles_of_block(p.tiles);
  p.sums = nullptr;
  return p;
}

template <class T>
void dots(const ArrayStencil& problem, void* sums, StreamView stream) {
  StencilParams<T> p = stencil_params<T>(problem);
  p.sums = static_cast<T*>(sums);
  const std::int64_t groups = (p.taps + kStencilGroup - 1) / kStencilGroup;
  launch<stencil_dots_kernel<T>>({groups * array_stencil_blocks(problem), kStencilThreads}, stream,
                                 current_device(), p);
}

template <class T>
void apply(const ArrayStencil& problem, StreamView stream) {
  const StencilParams<T> p = stencil_params<T>(problem);
  const LaunchShape shape{p.tiles, kStencilThreads};
  const int device = current_device();
  p.inner == 1 ? launch<stencil_kernel<T, true>>(shape, stream, device, p)
               : launch<stencil_kernel<T, false>>(shape, stream, device, p);
}

}  // namespace

void array_stencil(const ArrayStencil& problem, StreamView stream) {
  problem.dtype == DType::kFloat64 ? apply<double>(problem, stream) : apply<float>(problem, stream);
}
std::int64_t array_stencil_blocks(const ArrayStencil& problem) {
  const StencilParams<float> p = stencil_params<float>(problem);
  return (p.tiles + p.tiles_of_block - 1) / p.tiles_of_block;
}
void array_stencil_dots(const ArrayStencil& problem, void* sums, StreamView stream) {
  problem.dtype == DType::kFloat64 ? dots<double>(problem, sums, stream)
                                   : dots<float>(problem, sums, stream);
}

}  // namespace membound::cuda
