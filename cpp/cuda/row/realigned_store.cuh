// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Realigned stores: writes vectors of unaligned rows with aligned 16-byte stores. The rows are
// written one after the other and all have the same offset from a 16-byte boundary.
#include <cstdint>

#include "cuda/row/reader.cuh"
#include "cuda/row/realign.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Each lane stores the aligned block in which its vector starts, with the end of the left lane's
// vector, which it gets by a warp shuffle. At the ends of warps and of the row no lane can do that,
// and elements are stored one by one.
template <class T, int kVectorsPerItem>
class RealignedStore {
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  // This thread has the vectors lane, lane + lanes ... of a row of `cols` elements. step: elements
  // from row to row.
  __device__ RealignedStore(T* row, std::int64_t step, int lane, int lanes, int cols)
      : vector_stride_(lanes), step_(step) {
    const int behind = shift_of(row);
    shift_ = (kVectorBytes - behind) % kVectorBytes;
    block_ = reinterpret_cast<uint4*>(reinterpret_cast<char*>(row) - behind) + lane;
    const int own = kPack<T> - behind / kSize;  // elements of a vector that are in its first block
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
    for (unsigned& writes : writes_) asm volatile("" : "+r"(writes));  // not recomputed per use
  }
  __device__ void next() {
    block_ = reinterpret_cast<uint4*>(reinterpret_cast<T*>(block_) + step_);
  }
  // Called by whole warps.
  __device__ void store(int v, const uint4& vector) const {
    const unsigned writes = writes_[v / 2] >> v % 2 * 16;
    uint4* const to = block_ + v * vector_stride_;
    const uint4 block = with_end_before(vector);
    if (writes >> kPack<T> & 1) *to = block;
    if (writes << (32 - kPack<T>)) store_elements(to, vector, writes);
  }

 private:
  __device__ void store_elements(uint4* to, const uint4& vector, unsigned writes) const {
    VectorOf<T> stored;
    stored.vector = vector;
    T* const elements = reinterpret_cast<T*>(to + (shift_ != 0)) - shift_ / kSize + opaque_zero();
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
    if constexpr (kWords == 0) before.x = from_left_lane(vector.x);
    if constexpr (kWords <= 1) before.y = from_left_lane(vector.y);
    if constexpr (kWords <= 2) before.z = from_left_lane(vector.z);
    before.w = from_left_lane(vector.w);
    return bytes_from<kWords>(before, vector, (shift_ & 3) * 8);
  }
  static __device__ std::uint32_t from_left_lane(std::uint32_t word) {
    return __shfl_up_sync(0xffffffffu, word, 1);
  }

  int shift_;          // bytes from the start of a vector to the next boundary
  int vector_stride_;  // blocks between vectors of this thread
  // 16 bits per vector: elements to store one by one, and whether this thread stores the block.
  unsigned writes_[(kVectorsPerItem + 1) / 2] = {};
  std::int64_t step_;
  uint4* block_;  // of this thread's first vector
};

}  // namespace membound::cuda
