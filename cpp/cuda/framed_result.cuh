// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A row's frame, the 16-byte blocks of memory that it touches, and results that are written by
// them.
#include <cstdint>

#include "cuda/vec.cuh"

namespace membound::cuda {

// Where the elements of a frame's units are in the row. A row may touch one block more than it has
// chunks. Where the threads have no room for it, unit 0 has the end of the row, too: there is place
// for it before the start.
struct Frame {
  int shift;   // elements of the row's start behind a boundary
  int chunks;  // of the row
  int cols;
  bool wraps;

  template <class T>
  __device__ static Frame of(const T* row, int chunks, int cols, int units) {
    const int shift = shift_of(row) / static_cast<int>(sizeof(T));
    return {shift, chunks, cols, units == chunks && shift + cols > chunks * kPack<T>};
  }
  // Of a unit's first element; negative in unit 0.
  template <class T>
  __device__ int first(int unit) const {
    return unit * kPack<T> - shift;
  }
  // `cols` and more: there is none.
  template <class T>
  __device__ int column(int unit, int i) const {
    const int at = first<T>(unit) + i;
    if (at >= 0) return at;
    return wraps ? at + chunks * kPack<T> : cols;
  }
  template <class T>
  __device__ uint4 load(const T* row, int unit) const {
    ChunkOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (column<T>(unit, i) < cols) loaded.elements[i] = row[column<T>(unit, i)];
    }
    return loaded.chunk;
  }
};

// The first `bytes` bytes of one chunk, the rest of another.
__device__ inline uint4 merged(const uint4& first, const uint4& rest, int bytes) {
  const uint4 mask = first_bytes({~0u, ~0u, ~0u, ~0u}, bytes);
  return {(first.x & mask.x) | (rest.x & ~mask.x), (first.y & mask.y) | (rest.y & ~mask.y),
          (first.z & mask.z) | (rest.z & ~mask.z), (first.w & mask.w) | (rest.w & ~mask.w)};
}

// The units of one thread, `lanes` apart, of kArrays results that have the same frame, whose rows
// it writes one after the other.
template <class T, int kVecs, int kArrays>
class FramedResult {
  static constexpr unsigned kWhole = (1u << kPack<T>)-1;

 public:
  __device__ FramedResult(const Frame& frame, int lane, int lanes)
      : frame_(frame), apart_(lanes * kPack<T>), first_(frame.first<T>(lane)) {
#pragma unroll
    for (int v = 0; v < kVecs; ++v) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const int column = frame.first<T>(lane + v * lanes) + i;
        valid_ |= unsigned{column >= 0 && column < frame.cols} << (v * kPack<T> + i);
      }
    }
    has_end_ = frame.wraps && lane == 0;
    asm volatile("" : "+r"(valid_));  // else found anew for each use
  }
  // Its first row and the elements from row to row.
  __device__ void place(int array, T* row, std::int64_t step) {
    at_[array] = row + first_;
    step_[array] = step;
  }
  __device__ void next() {
#pragma unroll
    for (int array = 0; array < kArrays; ++array) at_[array] += step_[array];
  }
  __device__ void store(int v, const uint4 (&chunks)[kArrays]) const {
    const unsigned valid = valid_ >> v * kPack<T> & kWhole;
    if (valid == kWhole) {
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        *reinterpret_cast<uint4*>(at_[array] + v * apart_) = chunks[array];
      }
    } else if (valid != 0) {
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        store_elements(v, valid, at_[array], chunks[array]);
      }
    }
  }

 private:
  __device__ void store_elements(int v, unsigned valid, T* at, const uint4& chunk) const {
    ChunkOf<T> stored;
    stored.chunk = chunk;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (valid >> i & 1) at[v * apart_ + i] = stored.elements[i];
    }
    if (v > 0 || !has_end_) return;
    T* const end = at + frame_.chunks * kPack<T>;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (frame_.shift - i > frame_.chunks * kPack<T> - frame_.cols) end[i] = stored.elements[i];
    }
  }

  Frame frame_;
  bool has_end_;
  unsigned valid_ = 0;  // a bit for each element of each unit
  int apart_;           // elements between units
  int first_;
  std::int64_t step_[kArrays];  // elements between rows
  T* at_[kArrays];              // of unit 0 of this thread
};

}  // namespace membound::cuda
