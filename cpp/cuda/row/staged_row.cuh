// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of rows staged in shared memory by asynchronous copies, so that they take no registers
// while they are in flight.
#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/bulk_copy.cuh"
#include "cuda/row/tile.cuh"

namespace membound::cuda {

// Vectors of shared memory for an array of `vectors` vectors: an unaligned row touches one more
// block.
__host__ __device__ constexpr int staged_vectors(Access access, int vectors) {
  return vectors + (access == Access::kUnaligned ? 1 : 0);
}

// Stages a block's part of an aligned row in the order of its vectors, zero past the row. Each
// thread copies its own vectors, so that no barrier is needed; kAtOnce: thread 0 copies all with
// one bulk copy per array (from 9.0 on).
template <bool kAtOnce>
class StagedRowPart {
 public:
  // Called once by all threads. from(k, index): the address of vector `index` of the k-th array.
  template <int kArrays, class Tile, class From>
  __device__ static void fetch(uint4* const (&to)[kArrays], const Tile& tile, int vectors,
                               From from) {
#if MEMBOUND_HAS_CLUSTERS
    if constexpr (kAtOnce) {
      fetch_at_once(to, tile, vectors, from);
    } else
#endif
    {
#pragma unroll
      for (int i = 0; i < Tile::kVectors; ++i) {
        const int bytes = tile.index(i) < vectors ? kVectorBytes : 0;
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
      __syncthreads();  // thread 0 has initialised the mbarrier
      return wait_mbarrier(mbar(), 0);
    }
#endif
    wait_for_copies<0>();
  }

 private:
#if MEMBOUND_HAS_CLUSTERS
  template <int kArrays, class Tile, class From>
  __device__ static void fetch_at_once(uint4* const (&to)[kArrays], const Tile& tile, int vectors,
                                       From from) {
    const int first = tile.index(0) - tile.place(0), left = vectors - first;
    const int held = left < 0 ? 0 : left < tile.part() ? left : tile.part();
    if (threadIdx.x == 0) {
      init_mbarrier(mbar());
      fence_mbarrier_init();
      expect_bytes(mbar(), kArrays * held * kVectorBytes);
#pragma unroll
      for (int k = 0; k < kArrays; ++k) {
        if (held > 0) copy_bulk(to[k], from(k, first), held * kVectorBytes, mbar());
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kVectors; ++i) {
      if (tile.place(i) < held) continue;
#pragma unroll
      for (int k = 0; k < kArrays; ++k) to[k][tile.place(i)] = {0u, 0u, 0u, 0u};
    }
  }
  __device__ static std::uint64_t* mbar() {
    __shared__ std::uint64_t bytes;
    return &bytes;
  }
#endif
};

// Starts the copies of an unaligned row, whose vectors are each assembled from two aligned blocks.
// Each block is copied once, one more than the tile has vectors, and cut at the end of the row, so
// that zeros follow it. outermost: blocks may reach past the array. A cut block is then not copied
// asynchronously, because compute-sanitizer counts all 16 bytes of a cut copy.
template <class T, class Tile>
__device__ inline void stage_blocks(const RowReader<T, Access::kUnaligned>& from, uint4* to,
                                    const Tile& tile, int lane, int row_bytes, bool outermost) {
  constexpr int kLast = Tile::kVectors - 1;
  const int end = tile.active() ? from.shift() + row_bytes : 0;
  const uint4* blocks = from.block(0);
  const auto copy = [&](int place, int index) {
    const int left = end - index * kVectorBytes;
    const int bytes = left < 0 ? 0 : left < kVectorBytes ? left : kVectorBytes;
    const uint4* block = blocks + (bytes == 0 ? 0 : index);
    const bool cut = outermost && bytes < kVectorBytes;
    cut ? copy_sync(to + place, block, bytes) : copy_async(to + place, block, bytes);
  };
  if (tile.index(kLast) < end / kVectorBytes) {
#pragma unroll
    for (int i = 0; i <= kLast; ++i)
      copy_async(to + tile.place(i), blocks + tile.index(i), kVectorBytes);
  } else {
#pragma unroll
    for (int i = 0; i <= kLast; ++i) copy(tile.place(i), tile.index(i));
  }
  if (lane == 0) copy(tile.part(), tile.index(0) + tile.part());
}

// A thread's vectors from the blocks that it and adjacent threads copied. Called after a barrier.
template <bool kUniform, class Tile>
__device__ inline void load_staged_blocks(int shift, const uint4* from, const Tile& tile,
                                          uint4 (&vectors)[Tile::kVectors]) {
  constexpr int kAtOnce = Tile::kVectors < 2 ? 1 : 2;  // more would cost registers
  const int next = shift != 0;
#pragma unroll
  for (int first = 0; first < Tile::kVectors; first += kAtOnce) {
    uint4 low[kAtOnce], high[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      low[i] = from[tile.place(first + i)];
      high[i] = from[tile.place(first + i) + next];
    }
    with_shift<kUniform>(shift, [&](auto realign) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) vectors[first + i] = realign(low[i], high[i]);
    });
  }
}

}  // namespace membound::cuda
