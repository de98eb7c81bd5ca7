// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A result whose rows start anywhere, all as far behind a 16-byte boundary, and are written one
// after the other, out of vectors of the row.
#include <cstdint>

#include "cuda/row/reader.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Each lane writes the block that its vector starts in, with the end of its left neighbour's
// vector. What has no lane to do that, the ends of warps and of the row, goes element by element.
template <class T, int kVectorsPerItem>
class RealignedStore {
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  // Of a row of `cols` elements this thread has the vectors lane, lane + lanes ... step: elements
  // from row to row.
  __device__ RealignedStore(T* row, std::int64_t step, int lane, int lanes, int cols)
      : apart_(lanes), step_(step) {
    const int behind = shift_of(row);
    shift_ = (kVectorBytes - behind) % kVectorBytes;
    block_ = reinterpret_cast<uint4*>(reinterpret_cast<char*>(row) - behind) + lane;
    const int own = kPack<T> - behind / kSize;  // elements of a vector in its first block
    const int in_warp = lane % kWarpLanes;
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
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
  __device__ void store(int v, const uint4& vector) const {
    const unsigned writes = writes_[v / 2] >> v % 2 * 16;
    uint4* const to = block_ + v * apart_;
    const uint4 block = with_end_before(vector);
    if (writes >> kPack<T> & 1) *to = block;
    if (writes << (32 - kPack<T>)) store_elements(to, vector, writes);
  }

 private:
  __device__ void store_elements(uint4* to, const uint4& vector, unsigned writes) const {
    VectorOf<T> stored;
    stored.vector = vector;
    T* const elements = reinterpret_cast<T*>(to + (shift_ != 0)) - shift_ / kSize + late();
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (writes >> i & 1) elements[i] = stored.elements[i];
    }
  }
  __device__ uint4 with_end_before(const uint4& vector) const {
    if (shift_ == 0) return vector;
    switch (shift_ >> 2) {
      case 0: return with_end_before<0>(vector);
      case 1: return with_end_before<1>(vector);
      case 2: return with_end_before<2>(vector);
      default: return with_end_before<3>(vector);
    }
  }
  template <int kWords>
  __device__ uint4 with_end_before(const uint4& vector) const {
    uint4 before{};
    if constexpr (kWords == 0) before.x = of_left_lane(vector.x);
    if constexpr (kWords <= 1) before.y = of_left_lane(vector.y);
    if constexpr (kWords <= 2) before.z = of_left_lane(vector.z);
    before.w = of_left_lane(vector.w);
    return bytes_from<kWords>(before, vector, (shift_ & 3) * 8);
  }
  static __device__ std::uint32_t of_left_lane(std::uint32_t word) {
    return __shfl_up_sync(0xffffffffu, word, 1);
  }

  int shift_;  // bytes from a vector's start to the next boundary
  int apart_;  // blocks between the vectors of this thread
  // For each vector 16 bits: its elements that go alone, and whether this thread writes its block.
  unsigned writes_[(kVectorsPerItem + 1) / 2] = {};
  std::int64_t step_;
  uint4* block_;  // of the first
};

}  // namespace membound::cuda
