// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A row's span, the 16-byte blocks of memory that it touches, and results that are written by
// them.
#include <cstdint>

#include "cuda/row/reader.cuh"

namespace membound::cuda {

// Where the elements of a span's units are in the row. A row may touch one block more than it has
// vectors. Where the threads have no room for it, unit 0 has the end of the row, too: there is
// place for it before the start.
struct AlignedSpan {
  int shift;    // elements of the row's start behind a boundary
  int vectors;  // of the row
  int cols;
  int wraps;  // 1 or 0

  template <class T>
  __device__ static AlignedSpan of(const T* row, int vectors, int cols, int units) {
    return of_shift<T>(shift_of(row) / static_cast<int>(sizeof(T)), vectors, cols, units);
  }
  template <class T>
  __device__ static AlignedSpan of_shift(int shift, int vectors, int cols, int units) {
    return {shift, vectors, cols, units == vectors && shift + cols > vectors * kPack<T>};
  }
  // In registers of its own.
  __device__ AlignedSpan kept() const {
    AlignedSpan span = *this;
    span.shift = cuda::kept(shift);
    span.wraps = cuda::kept(wraps);
    return span;
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

// The first `bytes` bytes of one vector, the rest of another.
__device__ inline uint4 merged(const uint4& first, const uint4& rest, int bytes) {
  const uint4 mask = first_bytes({~0u, ~0u, ~0u, ~0u}, bytes);
  return {(first.x & mask.x) | (rest.x & ~mask.x), (first.y & mask.y) | (rest.y & ~mask.y),
          (first.z & mask.z) | (rest.z & ~mask.z), (first.w & mask.w) | (rest.w & ~mask.w)};
}

// The units of one thread, `lanes` apart, and which of their elements are in the row.
template <class T, int kVectorsPerItem>
class SpanUnits {
  static constexpr unsigned kWhole = (1u << kPack<T>)-1;

 public:
  __device__ SpanUnits(const AlignedSpan& span, int lane, int lanes)
      : span_(span), apart_(lanes * kPack<T>), first_(span.first<T>(lane)) {
#pragma unroll
    for (int v = 0; v < kVectorsPerItem; ++v) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) {
        const int column = span.first<T>(lane + v * lanes) + i;
        valid_ |= unsigned{column >= 0 && column < span.cols} << (v * kPack<T> + i);
      }
    }
    has_end_ = span.wraps && lane == 0;
    asm volatile("" : "+r"(valid_));  // else found anew for each use
  }
  __device__ const AlignedSpan& span() const { return span_; }
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
      if (span_.shift - i > span_.vectors * kPack<T> - span_.cols) {
        body(span_.vectors * kPack<T> + i, i);
      }
    }
  }

 private:
  __device__ unsigned bits(int v) const { return valid_ >> v * kPack<T> & kWhole; }

  AlignedSpan span_;
  bool has_end_;
  unsigned valid_ = 0;  // a bit for each element of each unit
  int apart_;
  int first_;
};

// kArrays results that have the same span, whose rows are written one after the other.
template <class T, int kVectorsPerItem, int kArrays>
class BulkResult {
 public:
  __device__ BulkResult(const AlignedSpan& span, int lane, int lanes) : units_(span, lane, lanes) {}
  // Its first row and the elements from row to row.
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
  T* at_[kArrays];              // of unit 0 of this thread
};

}  // namespace membound::cuda
