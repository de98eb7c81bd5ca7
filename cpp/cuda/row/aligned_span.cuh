// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The aligned span of an unaligned row: the 16-byte blocks of memory that the row touches. Results
// that are computed per block of the span leave with aligned 16-byte stores.
#include <cstdint>

#include "cuda/row/reader.cuh"
#include "cuda/row/realign.cuh"

namespace membound::cuda {

// Maps the elements of the span's blocks (units) to columns of the row. A row may touch one block
// more than it has vectors. If the threads have no slot for that block, unit 0 also holds the end
// of the row, in its elements before the start of the row (wraps).
struct AlignedSpan {
  int shift;    // elements from a 16-byte boundary to the row's start
  int vectors;  // of the row
  int cols;
  int wraps;  // 1: unit 0 also holds the end of the row; 0: it does not

  template <class T>
  __device__ static AlignedSpan of(const T* row, int vectors, int cols, int units) {
    return of_shift<T>(shift_of(row) / static_cast<int>(sizeof(T)), vectors, cols, units);
  }
  template <class T>
  __device__ static AlignedSpan of_shift(int shift, int vectors, int cols, int units) {
    return {shift, vectors, cols, units == vectors && shift + cols > vectors * kPack<T>};
  }
  // A copy that stays in registers instead of being recomputed.
  __device__ AlignedSpan kept() const {
    AlignedSpan span = *this;
    span.shift = cuda::kept(shift);
    span.wraps = cuda::kept(wraps);
    return span;
  }
  // The column of a unit's first element; may be negative in unit 0.
  template <class T>
  __device__ int first(int unit) const {
    return unit * kPack<T> - shift;
  }
  // The column of element i of a unit; `cols` or more if the element is outside the row.
  template <class T>
  __device__ int column(int unit, int i) const {
    const int at = first<T>(unit) + i;
    if (at >= 0) return at;
    return wraps ? at + vectors * kPack<T> : cols;
  }
  template <class T>
  __device__ uint4 load(const T* row, int unit) const {
    VectorOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (column<T>(unit, i) < cols) loaded.elements[i] = row[column<T>(unit, i)];
    }
    return loaded.vector;
  }
};

// The first `bytes` bytes of one vector, followed by the rest of another.
__device__ inline uint4 merged(const uint4& first, const uint4& rest, int bytes) {
  const uint4 mask = first_bytes({~0u, ~0u, ~0u, ~0u}, bytes);
  return {(first.x & mask.x) | (rest.x & ~mask.x), (first.y & mask.y) | (rest.y & ~mask.y),
          (first.z & mask.z) | (rest.z & ~mask.z), (first.w & mask.w) | (rest.w & ~mask.w)};
}

// The units of one thread, which are `lanes` apart, and which of their elements are in the row.
template <class T, int kVectorsPerItem>
class SpanUnits {
  static constexpr unsigned kWhole = (1u << kPack<T>)-1;

 public:
  __device__ SpanUnits(const AlignedSpan& span, int lane, int lanes)
      : span_(span), vector_stride_(lanes * kPack<T>), first_(span.first<T>(lane)) {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const int column = span.first<T>(lane + v * lanes) + i;
        valid_ |= unsigned{column >= 0 && column < span.cols} << (v * kPack<T> + i);
      }
    }
    has_end_ = span.wraps && lane == 0;
    asm volatile("" : "+r"(valid_));  // else recomputed for each use
  }
  __device__ const AlignedSpan& span() const { return span_; }
  // first(): the column of the first element of unit 0. apart(): elements between units.
  __device__ int first() const { return first_; }
  __device__ int apart() const { return vector_stride_; }
  __device__ bool whole(int v) const { return bits(v) == kWhole; }
  __device__ bool any(int v) const { return bits(v) != 0; }
  // Calls body(at, i) for each element i of unit v that is in the row; `at` counts from first().
  template <class Body>
  __device__ void each(int v, Body body) const {
    const unsigned valid = bits(v);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (valid >> i & 1) body(v * vector_stride_ + i, i);
    }
    if (v > 0 || !has_end_) return;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (span_.shift - i > span_.vectors * kPack<T> - span_.cols) {
        body(span_.vectors * kPack<T> + i, i);
      }
    }
  }

 private:
  __device__ unsigned bits(int v) const { return valid_ >> v * kPack<T> & kWhole; }

  AlignedSpan span_;
  bool has_end_;
  unsigned valid_ = 0;  // one bit per element of each unit
  int vector_stride_;
  int first_;
};

// Stores kArrays results that have the same span, row after row.
template <class T, int kVectorsPerItem, int kArrays>
class BulkResult {
 public:
  __device__ BulkResult(const AlignedSpan& span, int lane, int lanes) : units_(span, lane, lanes) {}
  // Sets an array's first row and the elements between rows.
  __device__ void place(int array, T* row, std::int64_t step) {
    at_[array] = row + units_.first();
    step_[array] = step;
  }
  __device__ const AlignedSpan& span() const { return units_.span(); }
  __device__ void next() {
#pragma unroll
    for (int array = 0; array < kArrays; ++array) at_[array] += step_[array];
  }
  __device__ void store(int v, const uint4 (&vectors)[kArrays]) const {
    if (units_.whole(v)) {
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        *reinterpret_cast<uint4*>(at_[array] + v * units_.apart()) = vectors[array];
      }
    } else if (units_.any(v)) {
#pragma unroll
      for (int array = 0; array < kArrays; ++array) {
        VectorOf<T> stored;
        stored.vector = vectors[array];
        T* const at = at_[array];
        units_.each(v, [&](int to, int i) { at[to] = stored.elements[i]; });
      }
    }
  }

 private:
  SpanUnits<T, kVectorsPerItem> units_;
  std::int64_t step_[kArrays];  // elements between rows
  T* at_[kArrays];              // in unit 0 of this thread
};

}  // namespace membound::cuda
