// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of rows that asynchronous copies put into shared memory, where they wait for their use
// without taking registers.
#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/bulk_copy.cuh"
#include "cuda/row/tile.cuh"

namespace membound::cuda {

// What an array of `chunks` chunks takes of shared memory.
__host__ __device__ constexpr int parked_places(Access access, int chunks) {
  return chunks + (access == Access::kShifted ? 1 : 0);
}

// An aligned row's part, in the order of its chunks, with zeros behind the row: each chunk is
// copied by the thread that has it, so that no barrier is needed, or all at once for thread 0,
// from 9.0 on.
template <bool kAtOnce>
class ParkedPart {
 public:
  // Once, by all threads. from(k, index): where chunk `index` of the k-th array is.
  template <int kArrays, class Tile, class From>
  __device__ static void fetch(uint4* const (&to)[kArrays], const Tile& tile, int chunks,
                               From from) {
#if MEMBOUND_HAS_CLUSTERS
    if constexpr (kAtOnce) {
      fetch_at_once(to, tile, chunks, from);
    } else
#endif
    {
#pragma unroll
      for (int i = 0; i < Tile::kChunks; ++i) {
        const int bytes = tile.index(i) < chunks ? kChunkBytes : 0;
#pragma unroll
        for (int k = 0; k < kArrays; ++k) {
          copy_async(to[k] + tile.place(i), from(k, tile.index(i)), bytes);
        }
      }
      commit_copies();
    }
  }
  __device__ static void receive() {
#if MEMBOUND_HAS_CLUSTERS
    if constexpr (kAtOnce) {
      __syncthreads();  // thread 0 has started the arrivals
      return wait_for_arrivals(arrived(), 0);
    }
#endif
    wait_for_copies<0>();
  }

 private:
#if MEMBOUND_HAS_CLUSTERS
  template <int kArrays, class Tile, class From>
  __device__ static void fetch_at_once(uint4* const (&to)[kArrays], const Tile& tile, int chunks,
                                       From from) {
    const int first = tile.index(0) - tile.place(0), left = chunks - first;
    const int held = left < 0 ? 0 : left < tile.part() ? left : tile.part();
    if (threadIdx.x == 0) {
      start_arrivals(arrived());
      settle_arrivals();
      expect_bytes(arrived(), kArrays * held * kChunkBytes);
#pragma unroll
      for (int k = 0; k < kArrays; ++k) {
        if (held > 0) copy_bulk(to[k], from(k, first), held * kChunkBytes, arrived());
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kChunks; ++i) {
      if (tile.place(i) < held) continue;
#pragma unroll
      for (int k = 0; k < kArrays; ++k) to[k][tile.place(i)] = {0u, 0u, 0u, 0u};
    }
  }
  __device__ static std::uint64_t* arrived() {
    __shared__ std::uint64_t bytes;
    return &bytes;
  }
#endif
};

// Starts the copies of a shifted row, of which a chunk is put together from two aligned blocks of
// memory: each is read once and cut at the end of the row, so that zeros follow it. One block more
// than the tile has places. outermost: compute-sanitizer counts all 16 bytes of a copy that is cut
// short; where they may lie outside of the array there is none.
template <class T, class Tile>
__device__ inline void park_blocks(const RowReader<T, Access::kShifted>& from, uint4* to,
                                   const Tile& tile, int lane, int row_bytes, bool outermost) {
  constexpr int kLast = Tile::kChunks - 1;
  const int end = tile.active() ? from.shift() + row_bytes : 0;
  const uint4* blocks = from.block(0);
  const auto copy = [&](int place, int index) {
    const int left = end - index * kChunkBytes;
    const int bytes = left < 0 ? 0 : left < kChunkBytes ? left : kChunkBytes;
    const uint4* block = blocks + (bytes == 0 ? 0 : index);
    const bool cut = outermost && bytes < kChunkBytes;
    cut ? copy_now(to + place, block, bytes) : copy_async(to + place, block, bytes);
  };
  if (tile.index(kLast) < end / kChunkBytes) {
#pragma unroll
    for (int i = 0; i <= kLast; ++i)
      copy_async(to + tile.place(i), blocks + tile.index(i), kChunkBytes);
  } else {
#pragma unroll
    for (int i = 0; i <= kLast; ++i) copy(tile.place(i), tile.index(i));
  }
  if (lane == 0) copy(tile.part(), tile.index(0) + tile.part());
}

// The chunks of a thread from the blocks that it and its neighbours copied, after a barrier.
template <bool kUniform, class Tile>
__device__ inline void unpark_blocks(int shift, const uint4* from, const Tile& tile,
                                     uint4 (&chunks)[Tile::kChunks]) {
  constexpr int kAtOnce = Tile::kChunks < 2 ? 1 : 2;  // more would take registers
  const int next = shift != 0;
#pragma unroll
  for (int first = 0; first < Tile::kChunks; first += kAtOnce) {
    uint4 low[kAtOnce], high[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      low[i] = from[tile.place(first + i)];
      high[i] = from[tile.place(first + i) + next];
    }
    with_shift<kUniform>(shift, [&](auto shifted) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) chunks[first + i] = shifted(low[i], high[i]);
    });
  }
}

}  // namespace membound::cuda
