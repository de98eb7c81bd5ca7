// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A result whose rows start anywhere, all as far behind a 16-byte boundary, and are written one
// after the other, out of chunks of the row.
#include <cstdint>

#include "cuda/row/reader.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Each lane writes the block that its chunk starts in, with the end of its left neighbour's chunk.
// What has no lane to do that, the ends of warps and of the row, goes element by element.
template <class T, int kVecs>
class NeighbourResult {
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  // Of a row of `cols` elements this thread has the chunks lane, lane + lanes ... step: elements
  // from row to row.
  __device__ NeighbourResult(T* row, std::int64_t step, int lane, int lanes, int cols)
      : apart_(lanes), step_(step) {
    const int behind = shift_of(row);
    shift_ = (kChunkBytes - behind) % kChunkBytes;
    block_ = reinterpret_cast<uint4*>(reinterpret_cast<char*>(row) - behind) + lane;
    const int own = kPack<T> - behind / kSize;  // elements of a chunk in its first block
    const int in_warp = lane % kWarpLanes;
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
      const int left = cols - (v * lanes + lane) * kPack<T>;
      const bool whole = left >= own && (behind == 0 || in_warp > 0);
      const bool rest_is_next = left >= kPack<T> + own && in_warp < kWarpLanes - 1;
      unsigned bits = unsigned{whole} << kPack<T>;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        bits |= unsigned{i < left && !(i < own ? whole : rest_is_next)} << i;
      }
      writes_[v / 2] |= bits << v % 2 * 16;
    }
#pragma unroll
    for (unsigned& writes : writes_) asm volatile("" : "+r"(writes));  // else found for each use
  }
  __device__ void next() {
    block_ = reinterpret_cast<uint4*>(reinterpret_cast<T*>(block_) + step_);
  }
  // By whole warps.
  __device__ void store(int v, const uint4& chunk) const {
    const unsigned writes = writes_[v / 2] >> v % 2 * 16;
    uint4* const to = block_ + v * apart_;
    const uint4 block = with_end_before(chunk);
    if (writes >> kPack<T> & 1) *to = block;
    if (writes << (32 - kPack<T>)) store_elements(to, chunk, writes);
  }

 private:
  __device__ void store_elements(uint4* to, const uint4& chunk, unsigned writes) const {
    ChunkOf<T> stored;
    stored.chunk = chunk;
    T* const elements = reinterpret_cast<T*>(to + (shift_ != 0)) - shift_ / kSize + late();
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (writes >> i & 1) elements[i] = stored.elements[i];
    }
  }
  __device__ uint4 with_end_before(const uint4& chunk) const {
    if (shift_ == 0) return chunk;
    switch (shift_ >> 2) {
      case 0: return with_end_before<0>(chunk);
      case 1: return with_end_before<1>(chunk);
      case 2: return with_end_before<2>(chunk);
      default: return with_end_before<3>(chunk);
    }
  }
  template <int kWords>
  __device__ uint4 with_end_before(const uint4& chunk) const {
    uint4 before{};
    if constexpr (kWords == 0) before.x = of_left_lane(chunk.x);
    if constexpr (kWords <= 1) before.y = of_left_lane(chunk.y);
    if constexpr (kWords <= 2) before.z = of_left_lane(chunk.z);
    before.w = of_left_lane(chunk.w);
    return bytes_from<kWords>(before, chunk, (shift_ & 3) * 8);
  }
  static __device__ std::uint32_t of_left_lane(std::uint32_t word) {
    return __shfl_up_sync(0xffffffffu, word, 1);
  }

  int shift_;  // bytes from a chunk's start to the next boundary
  int apart_;  // blocks between the chunks of this thread
  // For each chunk 16 bits: its elements that go alone, and whether this thread writes its block.
  unsigned writes_[(kVecs + 1) / 2] = {};
  std::int64_t step_;
  uint4* block_;  // of the first
};

}  // namespace membound::cuda
