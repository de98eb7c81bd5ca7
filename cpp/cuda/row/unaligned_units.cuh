// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Unaligned rows of unit stride in which each array has its own offset from a 16-byte boundary.
#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "cuda/activation/gate_tile.cuh"
#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/realign.cuh"

namespace membound::cuda {

// Whether rows can be divided as below: unit stride, and wide enough to consist mostly of whole
// blocks.
template <class T>
bool supports_unaligned(std::initializer_list<std::int64_t> col_strides, std::int64_t cols) {
  return cols > 7 * kPack<T> && std::all_of(col_strides.begin(), col_strides.end(),
                                            [](std::int64_t stride) { return stride == 1; });
}

// Divides such a row into units of kPack elements: first the aligned 16-byte blocks of the result,
// each assembled from two aligned blocks of every input; after them at most four units of the
// elements around. Blocks that would read outside an input's row are among the latter. A thread has
// units `lanes` apart, counted from its first one, of which at most one is past the blocks.
template <class T>
struct UnalignedUnits {
  int lanes;
  int blocks, end;      // from the thread's first unit on, as far as its units reach
  int head;             // elements before the blocks, fewer than 2 * kPack
  std::int64_t first;   // at the start of the thread's first unit
  std::int64_t within;  // elements in all blocks
  std::int64_t cols;

  template <int kArrays>
  __device__ UnalignedUnits(const T* out, std::int64_t cols, const T* const (&read)[kArrays],
                            const GatePosition& place, std::int64_t units)
      : lanes(place.lanes), cols(cols) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    head = (kVectorBytes - shift_of(out)) % kVectorBytes / kSize;
    int before = 0, behind = 0;  // in bytes
#pragma unroll
    for (int i = 0; i < kArrays; ++i) {
      const int shift = shift_of(read[i] + head);
      before = max(before, shift);
      behind = max(behind, (kVectorBytes - shift) % kVectorBytes);
    }
    if (before > head * kSize) head += kPack<T>;
    const std::int64_t bytes = (cols - head) * kSize - behind;
    const std::int64_t of_row = bytes < 0 ? 0 : bytes / kVectorBytes;
    within = of_row * kPack<T>;
    first = head + place.first * kPack<T>;
    end = from_first(units - place.first, place.count * lanes);
    blocks = from_first(of_row - place.first, end);
  }

  // Issues the loads of all arrays before the first is used. Vectors without a unit stay unset.
  template <int kArrays, int kCount>
  __device__ void load(uint4 (&vectors)[kArrays][kCount], const T* const (&rows)[kArrays]) const {
    uint4 low[kArrays][kCount], high[kArrays][kCount], around[kArrays];
    int shifts[kArrays], behind = kCount;
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
      const T* const row = rows[k] + first;
      shifts[k] = shift_of(row);
      const char* const start = reinterpret_cast<const char*>(row) - shifts[k];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i * lanes >= blocks) continue;
        const uint4* const from =
            with_evict_last(reinterpret_cast<const uint4*>(start) + i * lanes);
        low[k][i] = from[0];
        if (shifts[k] != 0) high[k][i] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i * lanes >= blocks && i * lanes < end) behind = i;
    }
    if (behind < kCount) {
#pragma unroll
      for (int k = 0; k < kArrays; ++k) around[k] = load_elements(rows[k], behind * lanes);
    }
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) vectors[k][i] = bytes_from(low[k][i], high[k][i], shifts[k]);
    }
    if (behind == kCount) return;
#pragma unroll
    for (int k = 0; k < kArrays; ++k) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i == behind) vectors[k][i] = around[k];
      }
    }
  }

  __device__ void store(T* row, int unit, const uint4& vector) const {
    if (unit < blocks) {
      reinterpret_cast<uint4*>(row + first)[unit] = vector;
      return;
    }
    VectorOf<T> stored;
    stored.vector = vector;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const std::int64_t at = element(unit, i);
      if (at < cols) row[at] = stored.elements[i];
    }
  }

 private:
  static __device__ int from_first(std::int64_t count, int most) {
    return count < most ? static_cast<int>(count) : most;
  }
  // The column of element i of a unit past the blocks; `cols` or more if there is none.
  __device__ std::int64_t element(int unit, int i) const {
    const int at = (unit - blocks) * kPack<T> + i;
    return at < head ? at : at + within;
  }
  __device__ uint4 load_elements(const T* row, int unit) const {
    VectorOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const std::int64_t at = element(unit, i);
      if (at < cols) loaded.elements[i] = row[at];
    }
    return loaded.vector;
  }
};

// Stores the vectors of the first `count` of `lanes` adjacent threads one after the other, from
// `to` on, at any alignment. Called by whole warps, of which these threads may be a part. `staged`:
// their shared memory, a vector each.
template <class T>
__device__ inline void store_realigned(T* to, int count, const uint4& vector, uint4* staged,
                                       int lane, int lanes) {
  __syncwarp();
  staged[lane] = vector;
  __syncwarp();
  const int elements = count * kPack<T>;
  const int before = (kVectorBytes - shift_of(to)) % kVectorBytes;
  const int head = min(elements, before / static_cast<int>(sizeof(T)));
  const int blocks = (elements - head) / kPack<T>;
  const T* from = reinterpret_cast<const T*>(staged);
#pragma unroll 1
  for (int i = lane; i < head; i += lanes) to[i] = from[i];
#pragma unroll 1
  for (int i = head + blocks * kPack<T> + lane; i < elements; i += lanes) to[i] = from[i];
  if (lane < blocks) {
    reinterpret_cast<uint4*>(to + head)[lane] =
        bytes_from(staged[lane], staged[lane + (before != 0)], before);
  }
}

}  // namespace membound::cuda
