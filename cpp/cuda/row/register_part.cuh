// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A part of an aligned row in registers, and the launch of kernels that hold rows on chip, aligned
// ones in registers and unaligned ones in shared memory.
#include <initializer_list>

#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/span_part.cuh"
#include "cuda/row/staged_part.cuh"

namespace membound::cuda {

// A vector of padding.
template <class T>
__device__ inline uint4 filled(std::uint32_t absent) {
  const std::uint32_t low = sizeof(T) == 8 ? 0 : absent;
  return {low, absent, low, absent};
}

// Whole aligned vectors of evenly spaced rows.
template <class T, int kVectors>
class RegisterPart {
 public:
  __device__ RegisterPart(const PartArray& array, const PartPosition& place, std::int64_t cols)
      : place_(place),
        row_(array.evenly_spaced_row<T>(place.row)),
        first_(place.part * kVectors * place.lanes + place.lane),
        vectors_(static_cast<int>((cols + kPack<T> - 1) / kPack<T>)) {}
  __device__ const T* row() const { return row_; }
  // The index of the thread's i-th vector.
  __device__ int index(int i) const { return first_ + i * place_.lanes; }
  // Whether the thread has the vector of a column, which is not negative.
  __device__ bool has(int column) const {
    const int vector = column / static_cast<unsigned>(kPack<T>);
    bool found = false;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) found = found || vector == index(i);
    return found;
  }

  // Reads the thread's vectors. absent_bits() or 0 pads them past the end of the row.
  __device__ void read(uint4 (&raw)[kVectors], std::uint32_t absent) const {
    const auto* from = with_evict_last(reinterpret_cast<const uint4*>(row_));
    if (index(kVectors - 1) < vectors_) {  // common rows need no padding
#pragma unroll
      for (int i = 0; i < kVectors; ++i) raw[i] = from[index(i)];
      return;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      raw[i] = index(i) < vectors_ ? from[index(i)] : filled<T>(absent);
    }
  }
  // Stores the vectors. At `column`, which is in one of them, it then stores `other`; -1: nowhere.
  __device__ void write(const uint4 (&raw)[kVectors], int column = -1, T other = {}) const {
    auto* to = reinterpret_cast<uint4*>(row_);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (index(i) < vectors_) to[index(i)] = raw[i];
    }
    if (column >= 0) row_[column] = other;
  }

 private:
  const PartPosition& place_;
  T* row_;
  int first_, vectors_;
};

// Fills vectors behind a branch: selecting each number instead would cost every thread.
template <int kCount>
__device__ inline void fill(uint4 (&raw)[kCount], const uint4& vector) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) raw[i] = vector;
  __syncwarp(__activemask());
}

// The access of kernels that hold rows on chip, for elements of at most 4 bytes.
template <class T>
Access register_access(std::initializer_list<const PartArray*> arrays, std::int64_t cols) {
  Access access = Access::kAligned;
  for (const PartArray* array : arrays) {
    if (array->data == nullptr) continue;
    if (array->col_stride != 1) return Access::kStrided;
    if (!is_vectorisable<T>(*array, cols) || array->rows.rank > 1) access = Access::kUnaligned;
  }
  return access;
}

// Calls launch.operator()<kVectors>() for the vectors that a thread holds.
template <class T, class Launch>
void dispatch_vectors(int vectors, const Launch& launch) {
  if constexpr (sizeof(T) == 2) {
    if (vectors == tuning::kFewVectors) return launch.template operator()<tuning::kFewVectors>();
  }
  launch.template operator()<tuning::kManyVectors>();
}

// The storage type that names a kernel of unaligned rows. float64 has none.
template <class T>
using BulkStorage = std::conditional_t<sizeof(T) < 8, T, float>;
// Launches the kernel of aligned or of unaligned rows. `arrays`: those that are read. Returns false
// if there is no such kernel, or not enough shared memory.
template <class T, auto kAligned, auto kBulk, class Params>
bool launch_register_part(Access access, LaunchShape shape, int arrays, StreamView stream,
                          int device, const Params& params) {
  if (access == Access::kAligned) {
    launch<kAligned>(shape, stream, device, params);
    return true;
  }
  shape.shared_bytes = bulk_bytes(params.config, arrays, device);
  if (access == Access::kStrided || sizeof(T) == 8 || shape.shared_bytes == 0) return false;
  launch<kBulk>(shape, stream, device, params);
  return true;
}

}  // namespace membound::cuda
