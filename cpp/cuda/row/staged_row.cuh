// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of rows staged in shared memory by asynchronous copies, so that they take no registers
// while they are in flight.
#include "cuda/launch/async_copy.cuh"
#include "cuda/launch/bulk_copy.cuh"
#include "cuda/row/tile.cuh"

namespace membound::cuda {

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

}  // namespace membound::cuda
