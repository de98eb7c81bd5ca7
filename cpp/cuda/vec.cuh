// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows as sequences of 16-byte chunks. Chunk c holds elements [c * kPack, (c + 1) * kPack) whatever
// the row's alignment or stride, so the same thread sums the same elements and bits do not change.
#include <cstdint>

#include "core/layout.hpp"
#include "cuda/convert.cuh"

namespace membound::cuda {

enum class Access {
  kAligned,  // one stride between rows, unit stride within, 16-byte aligned rows, whole chunks
  kAny,      // everything else, decided per row at run time
};

// Where a row starts. Divisions by the extents of more axes would cost the aligned kernels
// registers.
template <Access kAccess>
__device__ inline std::int64_t row_offset(std::int64_t stride, const RowLayout& rows,
                                          std::int64_t row) {
  if constexpr (kAccess == Access::kAligned) return row * stride;
  return rows.offset(row);
}

// Bytes [shift, shift + 16) of the 32 bytes low, high; shift is a multiple of 2 below 16.
__device__ inline uint4 bytes_from(const uint4& low, const uint4& high, int shift) {
  std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (shift & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) words[i] = words[i + 2];
  }
  if (shift & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) words[i] = words[i + 1];
  }
  const int bits = (shift & 3) * 8;
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = __funnelshift_r(words[i], words[i + 1], bits);
  return {words[0], words[1], words[2], words[3]};
}

template <class T>
union ChunkOf {
  uint4 chunk;
  T elements[kPack<T>];
  __device__ ChunkOf() : chunk{0u, 0u, 0u, 0u} {}
};

// One row that is read. Elements past the end read as zero.
template <class T, Access kAccess>
class RowReader {
 public:
  __device__ RowReader(const T* row, int chunks, std::int64_t cols, std::int64_t stride)
      : row_(row),
        chunks_(chunks),
        cols_(cols),
        stride_(stride),
        shift_(kAccess == Access::kAny
                   ? static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % kChunkBytes)
                   : 0) {}

  __device__ const void* address() const { return row_; }

  __device__ uint4 load(int index) const {
    if constexpr (kAccess == Access::kAligned) {
      if (index >= chunks_) return {0u, 0u, 0u, 0u};
      return reinterpret_cast<const uint4*>(row_)[index];
    } else {
      return load_any(index);
    }
  }

 private:
  __device__ uint4 load_any(int index) const {
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    if (stride_ == 1) {
      if (shift_ == 0 && first + kPack<T> <= cols_) {
        return reinterpret_cast<const uint4*>(row_)[index];
      }
      // Two aligned chunks around a shifted one, where both end inside the row.
      if (shift_ != 0 && first + 2 * kPack<T> - shift_ / static_cast<int>(sizeof(T)) <= cols_) {
        const uint4* base =
            reinterpret_cast<const uint4*>(reinterpret_cast<const char*>(row_) - shift_);
        return bytes_from(base[index], base[index + 1], shift_);
      }
    }
    ChunkOf<T> loaded;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (first + i < cols_) loaded.elements[i] = row_[(first + i) * stride_];
    }
    return loaded.chunk;
  }

  const T* row_;
  int chunks_;
  std::int64_t cols_;
  std::int64_t stride_;
  int shift_;
};

// One row that is written by lanes that hold neighbouring chunks. kLanes: how many neighbours in a
// warp work on one row (a power of two, or run time through `lanes`).
template <class T, Access kAccess>
class RowWriter {
 public:
  __device__ RowWriter(T* row, int chunks, std::int64_t cols, std::int64_t stride)
      : row_(row),
        chunks_(chunks),
        cols_(cols),
        stride_(stride),
        shift_(kAccess == Access::kAny
                   ? static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % kChunkBytes)
                   : 0) {}

  // Every lane of the warp calls this together (active: the lane's row exists); the lanes of one
  // row hold consecutive chunks, first_lane and last_lane are the ends of that run.
  __device__ void store(int index, const uint4& chunk, bool active, bool first_lane,
                        bool last_lane) const {
    if constexpr (kAccess == Access::kAligned) {
      if (active && index < chunks_) reinterpret_cast<uint4*>(row_)[index] = chunk;
    } else {
      store_any(index, chunk, active, first_lane, last_lane);
    }
  }

 private:
  __device__ void store_any(int index, const uint4& chunk, bool active, bool first_lane,
                            bool last_lane) const {
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    const bool whole = active && stride_ == 1 && first + kPack<T> <= cols_;
    constexpr unsigned kAll = 0xffffffffu;
    // A shifted chunk shares its first aligned block with the lane before, its last with the next.
    const uint4 before = {__shfl_up_sync(kAll, chunk.x, 1), __shfl_up_sync(kAll, chunk.y, 1),
                          __shfl_up_sync(kAll, chunk.z, 1), __shfl_up_sync(kAll, chunk.w, 1)};
    const bool next_whole = __shfl_down_sync(kAll, whole, 1) && !last_lane;
    if (!active) return;
    if (!whole) {
      store_elements(first, chunk, 0, kPack<T>);
      return;
    }
    if (shift_ == 0) {
      reinterpret_cast<uint4*>(row_)[index] = chunk;
      return;
    }
    const int head =
        kPack<T> - shift_ / static_cast<int>(sizeof(T));  // elements in the first block
    if (first_lane) {
      store_elements(first, chunk, 0, head);
    } else {
      char* block = reinterpret_cast<char*>(row_ + first) - shift_;
      *reinterpret_cast<uint4*>(block) = bytes_from(before, chunk, kChunkBytes - shift_);
    }
    if (!next_whole) store_elements(first, chunk, head, kPack<T>);
  }

  __device__ void store_elements(std::int64_t first, const uint4& chunk, int from, int to) const {
    ChunkOf<T> stored;
    stored.chunk = chunk;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      if (i >= from && i < to && first + i < cols_)
        row_[(first + i) * stride_] = stored.elements[i];
    }
  }

  T* row_;
  int chunks_;
  std::int64_t cols_;
  std::int64_t stride_;
  int shift_;
};

}  // namespace membound::cuda
