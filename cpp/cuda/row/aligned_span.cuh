// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A row's frame, the 16-byte blocks of memory that it touches, and results that are written by
// them.
#include <cstdint>

#include "cuda/row/reader.cuh"

namespace membound::cuda {

// Where the elements of a frame's units are in the row. A row may touch one block more than it has
// chunks. Where the threads have no room for it, unit 0 has the end of the row, too: there is place
// for it before the start.
struct Frame {
  int shift;   // elements of the row's start behind a boundary
  int chunks;  // of the row
  int cols;
  int wraps;  // 1 or 0

  template <class T>
  __device__ static Frame of(const T* row, int chunks, int cols, int units) {
    return of_shift<T>(shift_of(row) / static_cast<int>(sizeof(T)), chunks, cols, units);
  }
  template <class T>
  __device__ static Frame of_shift(int shift, int chunks, int cols, int units) {
    return {shift, chunks, cols, units == chunks && shift + cols > chunks * kPack<T>};
  }
  // In registers of its own.
  __device__ Frame kept() const {
    Frame frame = *this;
    frame.shift = cuda::kept(shift);
    frame.wraps = cuda::kept(wraps);
    return frame;
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

// The units of one thread, `lanes` apart, and which of their elements are in the row.
template <class T, int kVecs>
class FrameUnits {
  static constexpr unsigned kWhole = (1u << kPack<T>)-1;

 public:
  __device__ FrameUnits(const Frame& frame, int lane, int lanes)
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
  __device__ const Frame& frame() const { return frame_; }
  // The first element of unit 0, and the elements between units.
  __device__ int first() const { return first_; }
  __device__ int apart() const { return apart_; }
  __device__ bool whole(int v) const { return bits(v) == kWhole; }
  __device__ bool any(int v) const { return bits(v) != 0; }
  // body(at, i) for element i of unit v where it is in the row: `at` elements behind first().
  template <class Body>
  __device__ void each(int v, Body body) const {
    const unsigned valid = bits(v);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (valid >> i & 1) body(v * apart_ + i, i);
    }
    if (v > 0 || !has_end_) return;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (frame_.shift - i > frame_.chunks * kPack<T> - frame_.cols) {
        body(frame_.chunks * kPack<T> + i, i);
      }
    }
  }

 private:
  __device__ unsigned bits(int v) const { return valid_ >> v * kPack<T> & kWhole; }

  Frame frame_;
  bool has_end_;
  unsigned valid_ = 0;  // a bit for each element of each unit
  int apart_;
  int first_;
};

// kArrays results that have the same frame, whose rows are written one after the other.
template <class T, int kVecs, int kArrays>
class FramedResult {
 public:
  __device__ FramedResult(const Frame& frame, int lane, int lanes) : units_(frame, lane, lanes) {}
  // Its first row and the elements from row to row.
  __device__ void place(int array, T* row, std::int64_t step) {
    at_[array] = row + units_.first();
    step_[array] = step;
  }
  __device__ const Frame& frame() const { return units_.frame(); }
  __device__ void next() {
#pragma unroll
    for (int array = 0; array < kArrays; ++array) at_[array] += step_[array];
  }
  __device__ void store(int v, const uint4 (&chunks)[kArrays]) const {
    if (units_.whole(v)) {
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        *reinterpret_cast<uint4*>(at_[array] + v * units_.apart()) = chunks[array];
      }
    } else if (units_.any(v)) {
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        ChunkOf<T> stored;
        stored.chunk = chunks[array];
        T* const at = at_[array];
        units_.each(v, [&](int to, int i) { at[to] = stored.elements[i]; });
      }
    }
  }

 private:
  FrameUnits<T, kVecs> units_;
  std::int64_t step_[kArrays];  // elements between rows
  T* at_[kArrays];              // of unit 0 of this thread
};

}  // namespace membound::cuda
