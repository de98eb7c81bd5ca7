// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Packed rows: consecutive rows without gaps, of any alignment, form a contiguous tile that one
// bulk copy moves to or from shared memory. There a thread reads and writes vectors of its rows
// with the widest access that the start of every row allows.
#include <cstdint>

#include "cuda/launch/bulk_copy.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/realign.cuh"

namespace membound::cuda {

// A thread's base address in a tile, in shared memory. Its vectors are given as byte offsets from
// it.
template <class T>
class PackedVectors {
 public:
  PackedVectors() = default;
  __device__ PackedVectors(std::uint32_t address, int grain) : address_(address), width_(grain) {}
  __device__ PackedVectors behind(int bytes) const {
    return {address_ + static_cast<std::uint32_t>(bytes), width_};
  }

  // Loads the vectors at these byte offsets.
  template <int kCount>
  __device__ void load(const int (&behind)[kCount], uint4 (&vectors)[kCount]) const {
    with_width([&]<int kWidth>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) vectors[i] = load_at<kWidth>(address_ + behind[i]);
    });
  }
  // Stores the first `count` elements of each vector.
  template <int kCount>
  __device__ void store(const int (&behind)[kCount], const uint4 (&vectors)[kCount],
                        int count) const {
    with_width([&]<int kWidth>() {
#pragma unroll
      for (int i = 0; i < kCount; ++i) store_at<kWidth>(address_ + behind[i], vectors[i], count);
    });
  }

 private:
  template <class Body>
  __device__ void with_width(Body body) const {
    if constexpr (sizeof(T) == 2) {
      if (width_ == 2) return body.template operator()<2>();
    }
    width_ == 4 ? body.template operator()<4>() : body.template operator()<8>();
  }

  template <int kWidth>
  static __device__ uint4 load_at(std::uint32_t from) {
    if constexpr (kWidth == 8) {
      const uint2 low = load_shared<uint2>(from), high = load_shared<uint2>(from + 8);
      return {low.x, low.y, high.x, high.y};
    } else if constexpr (kWidth == 4) {
      return {load_shared<std::uint32_t>(from), load_shared<std::uint32_t>(from + 4),
              load_shared<std::uint32_t>(from + 8), load_shared<std::uint32_t>(from + 12)};
    } else {
      const std::uint32_t shift = from % kVectorBytes, block = from - shift;
      return bytes_from(load_shared<uint4>(block), load_shared<uint4>(block + kVectorBytes),
                        static_cast<int>(shift));
    }
  }
  template <int kWidth>
  static __device__ void store_at(std::uint32_t to, const uint4& vector, int count) {
    const int bytes = count * static_cast<int>(sizeof(T));
    if constexpr (kWidth == 8) {
      if (bytes >= 8) store_shared(to, uint2{vector.x, vector.y});
      if (bytes >= 16) store_shared(to + 8, uint2{vector.z, vector.w});
    } else if constexpr (kWidth == 4) {
      if (bytes >= 4) store_shared(to, vector.x);
      if (bytes >= 8) store_shared(to + 4, vector.y);
      if (bytes >= 12) store_shared(to + 8, vector.z);
      if (bytes >= 16) store_shared(to + 12, vector.w);
    } else {
      store_2byte(to, vector, count);
    }
  }
  // 2-byte elements that may start within a word: stores a half word before whole words, or one
  // more whole word, and at the end the half word that is left.
  static __device__ void store_2byte(std::uint32_t to, const uint4& vector, int count) {
    const bool within = to & 2;
    if (within) {
      if (count > 0) store_shared(to, static_cast<std::uint16_t>(vector.x));
    } else if (count > 1) {
      store_shared(to, vector.x);
    }
    const std::uint32_t pick = within ? 0x5432 : 0x7654, words = within ? to + 2 : to + 4;
    const int more = within ? count - 1 : count - 2;
    if (more >= 2) store_shared(words, __byte_perm(vector.x, vector.y, pick));
    if (more >= 4) store_shared(words + 4, __byte_perm(vector.y, vector.z, pick));
    if (more >= 6) store_shared(words + 8, __byte_perm(vector.z, vector.w, pick));
    if ((more & 1) && count > 0) {
      const int last = count - 1;
      const std::uint32_t low = last < 2 ? vector.x : vector.y,
                          high = last < 6 ? vector.z : vector.w;
      const std::uint32_t word = last < 4 ? low : high;
      store_shared(to + 2 * last, static_cast<std::uint16_t>(last & 1 ? word >> 16 : word));
    }
  }

  std::uint32_t address_;
  int width_;
};

// The tile of one array, and its address in dynamic shared memory.
template <class T>
class PackedTile {
  static constexpr int kSize = static_cast<int>(sizeof(T));

 public:
  // The tile starts at `data`. place: vectors of shared memory before it.
  __device__ PackedTile(const T* data, int elements, int place)
      : data_(const_cast<T*>(data)),
        bytes_(elements * kSize),
        place_(place),
        shift_(shift_of(data)) {}

  // For a thread whose vectors start `bytes` after the first element of the tile.
  __device__ PackedVectors<T> vectors(int cols, int bytes) const {
    const int steps = shift_ | (cols * kSize);
    return {shared_address(places()) + static_cast<std::uint32_t>(shift_ + bytes), steps & -steps};
  }
  // The address of element i.
  __device__ T* element(int i) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(places()) + shift_) + i;
  }

#if MEMBOUND_HAS_CLUSTERS
  // Called by one thread. at_start, at_end: the array starts or ends with this tile, and nothing
  // outside it is read.
  __device__ void fetch(std::uint64_t* mbar, bool at_start, bool at_end) const {
    int first = 0, end = (shift_ + bytes_ + kVectorBytes - 1) / kVectorBytes;
    if (at_start && shift_ != 0) {
      first = 1;
      copy_elements(0, (kVectorBytes - shift_) / kSize);
    }
    const int over = (shift_ + bytes_) % kVectorBytes / kSize;
    if (at_end && over != 0) {
      --end;
      copy_elements(bytes_ / kSize - over, bytes_ / kSize);
    }
    expect_bytes(mbar, (end - first) * kVectorBytes);
    copy_bulk(places() + first,
              reinterpret_cast<const char*>(data_) - shift_ + first * kVectorBytes,
              (end - first) * kVectorBytes, mbar);
  }
  // Called by the first threads of a block, after fence_async_proxy() and a barrier. Thread 0
  // bulk-copies the vectors that lie entirely within the tile; the ends are stored by elements.
  __device__ void send() const {
    const int head = (kVectorBytes - shift_) % kVectorBytes;
    const int whole = (bytes_ - head) / kVectorBytes;
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kPack<T>) return;
    if (i == 0) {
      store_bulk(reinterpret_cast<char*>(data_) + head, places() + (shift_ != 0),
                 whole * kVectorBytes);
    }
    if (i < head / kSize) data_[i] = *element(i);
    const int behind = head / kSize + whole * kPack<T> + i;
    if (behind < bytes_ / kSize) data_[behind] = *element(behind);
  }
#endif

 private:
  __device__ uint4* places() const {
    extern __shared__ uint4 pieces[];
    return pieces + place_;
  }
  __device__ void copy_elements(int from, int to) const {
#pragma unroll 1
    for (int i = from; i < to; ++i) *element(i) = data_[i];
  }

  T* data_;
  int bytes_;
  int place_;
  int shift_;
};

}  // namespace membound::cuda
