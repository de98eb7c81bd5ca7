// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Parts of rows that asynchronous copies put into shared memory, where they wait for their use
// without taking registers.
#include "cuda/async_copy.cuh"
#include "cuda/row_tile.cuh"

namespace membound::cuda {

// What an array of `chunks` chunks takes of shared memory.
__host__ __device__ constexpr int parked_places(Access access, int chunks) {
  return chunks + (access == Access::kShifted ? 1 : 0);
}

// Starts the copies of an aligned row's chunks, each by the thread that has it, so that no barrier
// is needed; zeros behind the row. to: of the tile's first place.
template <class T, class Tile>
__device__ inline void park_chunks(const RowReader<T, Access::kAligned>& from, uint4* to,
                                   const Tile& tile) {
#pragma unroll
  for (int i = 0; i < Tile::kChunks; ++i) {
    const bool there = from.has(tile.index(i));
    copy_async(to + tile.place(i), from.address(tile.index(i)), there ? kChunkBytes : 0);
  }
}

// The same for a shifted row, of which a chunk is put together from two aligned blocks of memory:
// each is read once and cut at the end of the row, so that zeros follow it. One block more than the
// tile has places. outermost: compute-sanitizer counts all 16 bytes of a copy that is cut short;
// where they may lie outside of the array there is none.
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
    outermost ? copy_now(to + place, block, bytes) : copy_async(to + place, block, bytes);
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
