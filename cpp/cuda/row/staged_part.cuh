// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A part of a row of any stride and alignment, staged in shared memory.
#include "cuda/row/part.cuh"

namespace membound::cuda {

// Copies with the lanes of a row, four loads in flight per lane. Out of line, because inlined
// copies were half of a kernel, and without a trip count, which would take a division.
template <class U>
__device__ __noinline__ void copy_by_lanes(U* to, std::int64_t to_stride, const U* from,
                                           std::int64_t from_stride, int count, int lane,
                                           int lanes) {
  constexpr int kAtOnce = 4;
#pragma unroll 1
  for (int first = lane; first < count; first += kAtOnce * lanes) {
    U held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * lanes;
      if (at < count) held[i] = from[at * from_stride];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * lanes;
      if (at < count) to[at * to_stride] = held[i];
    }
  }
}

// One array's part of a row, processed vector by vector. It is staged in shared memory, where
// vectors are aligned whatever the row is, and adjacent lanes access adjacent elements of the row.
// Without enough shared memory, vectors are gathered one by one.
template <class T>
class StagedPart {
 public:
  // staged: of the block, a vector for each vector of a part of each of its rows; or null.
  __device__ StagedPart(const PartArray& array, bool aligned, const PartPosition& place,
                        uint4* staged)
      : row_(array.row<T>(place.row)),
        stride_(array.col_stride),
        aligned_(aligned),
        place_(place),
        staged_(staged == nullptr
                    ? nullptr
                    : staged + (static_cast<int>(threadIdx.x) - place.lane) * place.vectors) {}

  // Copies what the part has of the first `count` elements of the row.
  __device__ void copy_in(std::int64_t part, std::int64_t count) const {
    if (staged_ == nullptr) return;
    const int held = within(part, count);
    const T* from = row_ + first_of(part) * stride_;
    if (aligned_) {
      copy_by_lanes(staged_, 1, reinterpret_cast<const uint4*>(from), 1,
                    (held + kPack<T> - 1) / kPack<T>, place_.lane, place_.lanes);
    } else {
      copy_by_lanes(reinterpret_cast<T*>(staged_), 1, from, stride_, held, place_.lane,
                    place_.lanes);
    }
    __syncthreads();
  }
  // Vector i of the thread; unspecified past `count` elements of the row.
  __device__ uint4 vector(std::int64_t part, int i, std::int64_t count) const {
    const std::int64_t index = place_.vector(part, i), left = count - index * kPack<T>;
    if (left <= 0) return {0u, 0u, 0u, 0u};
    if (staged_ != nullptr) return staged_[i * place_.lanes + place_.lane];
    return load_elements(row_ + index * kPack<T> * stride_, stride_, left);
  }
  __device__ void write_out(std::int64_t part, int i, std::int64_t count,
                            const uint4& vector) const {
    const std::int64_t index = place_.vector(part, i), left = count - index * kPack<T>;
    if (left <= 0) return;
    if (staged_ != nullptr) {
      staged_[i * place_.lanes + place_.lane] = vector;
    } else {
      store_elements(row_ + index * kPack<T> * stride_, stride_, left, vector);
    }
  }
  __device__ void copy_out(std::int64_t part, std::int64_t count) const {
    if (staged_ == nullptr) return;
    __syncthreads();
    const int held = within(part, count);
    T* to = row_ + first_of(part) * stride_;
    if (aligned_) {
      copy_by_lanes(reinterpret_cast<uint4*>(to), 1, static_cast<const uint4*>(staged_), 1,
                    held / kPack<T>, place_.lane, place_.lanes);
    } else {
      copy_by_lanes(to, stride_, reinterpret_cast<const T*>(staged_), 1, held, place_.lane,
                    place_.lanes);
    }
    __syncthreads();
  }

 private:
  __device__ std::int64_t first_of(std::int64_t part) const {
    return part * place_.vectors * kPack<T> * place_.lanes;
  }
  __device__ int within(std::int64_t part, std::int64_t count) const {
    const std::int64_t left = count - first_of(part);
    const int most = place_.vectors * kPack<T> * place_.lanes;
    return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
  }

  T* row_;
  std::int64_t stride_;
  bool aligned_;
  const PartPosition& place_;
  uint4* staged_;
};

// Bytes of shared memory to stage `arrays` arrays; 0 if the GPU has too little, next to the static
// shared memory of the kernels.
inline std::size_t staged_bytes(const tuning::SoftmaxConfig& config, int arrays, int device) {
  constexpr std::size_t kStaticSharedBytes = 2048;
  const std::size_t bytes = std::size_t{kVectorBytes} * config.threads * config.vectors * arrays;
  return bytes + kStaticSharedBytes <= max_shared_bytes(device) ? bytes : 0;
}

}  // namespace membound::cuda
