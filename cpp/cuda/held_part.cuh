// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A part of a row in the registers of threads, and how kernels that hold rows are launched.
#include <initializer_list>

#include "cuda/l2_priority.cuh"
#include "cuda/staged_part.cuh"

namespace membound::cuda {

// Whole aligned chunks of rows that are evenly spaced, or rows of neighbours that start anywhere.
template <class T, Access kAccess, int kChunks>
class HeldPart {
 public:
  __device__ HeldPart(const PartArray& array, const PartPlace& place, std::int64_t cols)
      : array_(array), place_(place), first_(place.part * kChunks * place.lanes + place.lane) {
    row_ = kAccess == Access::kAligned ? array.even_row<T>(place.row) : array.row<T>(place.row);
    chunks_ = static_cast<int>((cols + kPack<T> - 1) / kPack<T>);
    cols_ = cols;
  }
  __device__ const T* row() const { return row_; }
  // Of the i-th chunk of the thread.
  __device__ int index(int i) const { return first_ + i * place_.lanes; }
  // Whether one of them has the column, which is not negative.
  __device__ bool has(int column) const {
    const int chunk = column / static_cast<unsigned>(kPack<T>);
    bool found = false;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) found = found || chunk == index(i);
    return found;
  }

  // The thread's chunks; absent_bits() or 0 are what is not in the row.
  __device__ void read(uint4 (&raw)[kChunks], std::uint32_t absent) const {
    if constexpr (kAccess == Access::kAligned) {
      const auto* from = outlasting_writes(reinterpret_cast<const uint4*>(row_));
      if (index(kChunks - 1) < chunks_) {  // everyday rows: nothing to fill
#pragma unroll
        for (int i = 0; i < kChunks; ++i) raw[i] = from[index(i)];
        return;
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        raw[i] = index(i) < chunks_ ? from[index(i)] : filled(absent);
      }
    } else {
      const RowReader<T, kAccess> reader(row_, array_, chunks_, cols_);
      RawChunk<kAccess> fetched[kChunks];
      const auto at = [this](int i) { return index(i); };
      reader.fetch(fetched, at);
      // Threads of a warp agree on the shift unless it has several rows.
      place_.lanes > kWarpLanes ? reader.template chunks<true>(fetched, raw, at)
                                : reader.template chunks<false>(fetched, raw, at);
      if (absent == 0 || index(kChunks - 1) < chunks_ - 1) return;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        raw[i] =
            with_absent(raw[i], cols_ - static_cast<std::int64_t>(index(i)) * kPack<T>, absent);
      }
    }
  }
  // By all threads of the block, rows that start anywhere through its shared memory, a chunk for
  // each of its chunks. At `column`, which a chunk of the thread has, there is `other`; -1:
  // nowhere.
  __device__ void write(const uint4 (&raw)[kChunks], uint4* staged, int column = -1,
                        T other = {}) const {
    if constexpr (kAccess == Access::kAligned) {
      auto* to = reinterpret_cast<uint4*>(row_);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (index(i) < chunks_) to[index(i)] = raw[i];
      }
      if (column >= 0) row_[column] = other;
    } else {
      uint4* const mine = staged + (static_cast<int>(threadIdx.x) - place_.lane) * kChunks;
#pragma unroll
      for (int i = 0; i < kChunks; ++i) mine[i * place_.lanes + place_.lane] = raw[i];
      if (column >= 0) {
        reinterpret_cast<T*>(mine)[column - (first_ - place_.lane) * kPack<T>] = other;
      }
      if (place_.lanes > kWarpLanes) {
        __syncthreads();
      } else {
        __syncwarp();
      }
      const RowWriter<T, kAccess> writer(row_, array_, chunks_, cols_);
      const auto store = [&]<bool kUniform>() {
        writer.template store_staged<kUniform, kChunks>(mine, first_ - place_.lane, place_.lanes,
                                                        place_.lane);
      };
      place_.lanes > kWarpLanes ? store.template operator()<true>()
                                : store.template operator()<false>();
    }
  }

  static __device__ uint4 filled(std::uint32_t absent) {
    const std::uint32_t low = sizeof(T) == 8 ? 0 : absent;
    return {low, absent, low, absent};
  }

 private:
  static __device__ uint4 with_absent(const uint4& chunk, std::int64_t count,
                                      std::uint32_t absent) {
    constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
    std::uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (count <= i * kOfWord) words[i] = absent;
      if (kOfWord == 2 && count == 2 * i + 1) words[i] |= absent & 0xffff0000u;
    }
    return {words[0], words[1], words[2], words[3]};
  }

  const PartArray& array_;
  const PartPlace& place_;
  T* row_;
  int first_, chunks_;
  std::int64_t cols_;
};

// Behind a branch: chosen number by number, every thread would pay for it.
template <int kCount>
__device__ inline void fill(uint4 (&raw)[kCount], const uint4& chunk) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) raw[i] = chunk;
  __syncwarp(__activemask());
}

// How arrays can be held, of up to 4 bytes for each element.
template <class T>
Access held_access(std::initializer_list<const PartArray*> arrays, std::int64_t cols) {
  Access access = Access::kAligned;
  for (const PartArray* array : arrays) {
    if (array->data == nullptr) continue;
    if (array->col_stride != 1) return Access::kAny;
    if (!takes_chunks<T>(*array, cols) || array->rows.rank > 1) access = Access::kShifted;
  }
  return access;
}

// Whether kernels hold such rows.
template <class T>
bool is_held(Access access) {
  return access == Access::kAligned || (access == Access::kShifted && sizeof(T) < 8);
}
// Calls launch.operator()<kChunks>() for as many as threads hold.
template <class T, class Launch>
void dispatch_chunks(int chunks, const Launch& launch) {
  if constexpr (sizeof(T) == 2) {
    if (chunks == tuning::kFewChunks) return launch.template operator()<tuning::kFewChunks>();
  }
  launch.template operator()<tuning::kManyChunks>();
}
// What `is_held` are that are not aligned.
template <class T>
inline constexpr Access kHeldRest = sizeof(T) < 8 ? Access::kShifted : Access::kAligned;

// The kernel of rows that are held, for aligned ones or others.
template <auto kAligned, auto kShifted, class Params>
void launch_held(Access access, LaunchShape shape, StreamView stream, int device,
                 const Params& params) {
  if (access == Access::kAligned) return launch<kAligned>(shape, stream, device, params);
  shape.shared_bytes = staged_bytes(params.config, 1, device);
  launch<kShifted>(shape, stream, device, params);
}

}  // namespace membound::cuda
