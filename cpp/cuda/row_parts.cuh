// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows in parts that threads hold in registers: which chunks a thread has, how they are read and
// written, and sums over a row in one tree, wherever its parts are worked on.
#include "cuda/cluster.cuh"
#include "cuda/launch.hpp"
#include "cuda/reduce.cuh"
#include "cuda/tuning/softmax.hpp"
#include "cuda/vec.cuh"

namespace membound::cuda {

template <class T>
inline constexpr int kHeldChunks = tuning::softmax_chunks(sizeof(T));
template <class T>
inline constexpr int kHeldNumbers = kHeldChunks<T> * kPack<T>;
inline constexpr int kPartWarps = tuning::kSoftmaxThreads / kWarpLanes;

// Where a row starts. Out of line: divisions are long.
static __device__ __noinline__ std::int64_t part_row_offset(const RowLayout& rows,
                                                            std::int64_t row) {
  std::int64_t at = 0;
#pragma unroll 1
  for (int axis = rows.rank - 1; axis > 0; --axis) {
    const std::int64_t outer = row / rows.shape[axis];
    at += (row - outer * rows.shape[axis]) * rows.strides[axis];
    row = outer;
  }
  return at + row * rows.strides[0];
}

// One array of a kernel's rows.
struct PartArray {
  void* data;
  RowLayout rows;
  std::int64_t col_stride;

  template <class T>
  __device__ T* row(std::int64_t index) const {
    return static_cast<T*>(data) + part_row_offset(rows, index);
  }
  // Of rows that are evenly spaced.
  template <class T>
  __device__ T* even_row(std::int64_t index) const {
    return static_cast<T*>(data) + index * rows.strides[0];
  }
};

// 32 bits of infinities, for what a row of up to 32 bits lacks of the chunks that its threads hold.
inline std::uint32_t absent_bits(DType dtype, bool positive) {
  const std::uint32_t bits = dtype == DType::kFloat16    ? 0x7c007c00u
                             : dtype == DType::kBFloat16 ? 0x7f807f80u
                                                         : 0x7f800000u;
  return positive ? bits : bits | (dtype == DType::kFloat32 ? 0x80000000u : 0x80008000u);
}

// Kernels know storage by its size: Float16 stands for bfloat16, too.
template <class T>
using StorageOf = std::conditional_t<sizeof(T) == 2, Float16, T>;

// Whether all rows of an array are whole aligned chunks. Held ones are evenly spaced, too.
template <class T>
inline bool takes_chunks(const PartArray& array, std::int64_t cols) {
  bool fits = array.col_stride == 1 && cols % kPack<T> == 0 &&
              reinterpret_cast<std::uintptr_t>(array.data) % kChunkBytes == 0;
  for (int axis = 0; axis < array.rows.rank; ++axis)
    fits = fits && array.rows.strides[axis] % kPack<T> == 0;
  return fits;
}

// Where a thread works.
struct PartPlace {
  int lanes, lane;
  int part;          // of the row, in the cluster
  int parts;         // blocks of the cluster
  std::int64_t row;  // past the last: a lane without a row, there for the others' shuffles

  __device__ explicit PartPlace(const tuning::SoftmaxConfig& config)
      : lanes(config.lanes),
        lane(static_cast<int>(threadIdx.x) & (config.lanes - 1)),
        part(0),
        parts(config.blocks_per_row) {
    if (lanes > kWarpLanes) {
      lane = static_cast<int>(threadIdx.x);
      row = blockIdx.x;
      if (parts > 1) {
        part = cluster_rank();
        row = cluster_index();
      }
    } else {
      row = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) >> log2_of(lanes);
    }
  }

  // The i-th chunk of this thread in a part.
  template <class T>
  __device__ std::int64_t chunk(std::int64_t of_part, int i) const {
    return (of_part * kHeldChunks<T> + i) * lanes + lane;
  }
  // A lane past the last row does one of the others, and must not write.
  __device__ bool take_row(std::int64_t rows) {
    const bool has_row = row < rows;
    if (!has_row) row = rows - 1;
    return has_row;
  }

  // Over the lanes of a part; all of them get the result. Rounds count up from 0.
  template <class Value, class Combine>
  __device__ Value reduce(Value mine, int round, Combine combine) const {
    if (lanes <= kWarpLanes) return reduce_lanes(mine, lanes, combine);
    const Value values[1] = {mine};
    return reduce_block<kPartWarps>(values, round, combine);
  }
};

// Chunks of storage that is known by its size.
template <class T>
__device__ inline Numbers<T> unpack_any(const uint4& chunk, DType dtype) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kBFloat16) {
      const Numbers<BFloat16> numbers = unpack<BFloat16>(chunk);
      Numbers<T> same;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) same.at[i] = numbers.at[i];
      return same;
    }
  }
  return unpack<T>(chunk);
}
template <class T>
__device__ inline accumulate_t<T> number_any(T storage, DType dtype) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kBFloat16) return to_number(BFloat16{storage.bits});
  }
  return to_number(storage);
}
template <class T>
__device__ inline uint4 pack_any(const Numbers<T>& numbers, DType dtype) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kBFloat16) {
      Numbers<BFloat16> same;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) same.at[i] = numbers.at[i];
      return pack<BFloat16>(same);
    }
  }
  return pack<T>(numbers);
}

// What the parts of a row tell each other: a Value in each of kRounds rounds.
template <class Value, int kRounds = 1>
class PartExchange {
 public:
  using Shared = typename ClusterExchange<Value, kRounds>::Shared;
  __device__ PartExchange(Shared& shared, const PartPlace& place)
      : exchange_{shared, place.parts, place.parts}, place_(place) {}

  // First of all.
  __device__ void start() const {
    if (place_.parts > 1) exchange_.announce();
  }
  // After a reduction over the part: the values of all of them.
  __device__ const Value* all(const Value& mine, int round = 0) const {
    if (place_.lane < kWarpLanes) {
      if (round == 0) exchange_.wait_for_peers();
      exchange_.send(round, place_.part, mine);
    }
    return exchange_.collect(round);
  }

 private:
  ClusterExchange<Value, kRounds> exchange_;
  const PartPlace& place_;
};

// By the lanes of a row, four loads of each at once. Out of line, and without a count of rounds,
// which would take a division: inlined copies were half of a kernel.
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

// The part of one array's row that threads work on chunk by chunk. It goes through shared memory,
// where chunks are aligned whatever the row is, and lanes touch neighbours of the row; without
// shared memory enough, chunks are gathered one by one.
template <class T>
class StagedPart {
 public:
  // staged: of the block, a chunk for each chunk of a part of each of its rows; or null.
  __device__ StagedPart(const PartArray& array, bool aligned, const PartPlace& place, uint4* staged)
      : row_(array.row<T>(place.row)),
        stride_(array.col_stride),
        aligned_(aligned),
        place_(place),
        staged_(staged == nullptr
                    ? nullptr
                    : staged + (static_cast<int>(threadIdx.x) - place.lane) * kHeldChunks<T>) {}

  // The first `count` elements of the row, as far as they are in the part.
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
  // Chunk i of the thread; what lies behind `count` elements of the row is anything.
  __device__ uint4 chunk(std::int64_t part, int i, std::int64_t count) const {
    const std::int64_t index = place_.chunk<T>(part, i), left = count - index * kPack<T>;
    if (left <= 0) return {0u, 0u, 0u, 0u};
    if (staged_ != nullptr) return staged_[i * place_.lanes + place_.lane];
    return load_elements(row_ + index * kPack<T> * stride_, stride_, left);
  }
  __device__ void put(std::int64_t part, int i, std::int64_t count, const uint4& chunk) const {
    const std::int64_t index = place_.chunk<T>(part, i), left = count - index * kPack<T>;
    if (left <= 0) return;
    if (staged_ != nullptr) {
      staged_[i * place_.lanes + place_.lane] = chunk;
    } else {
      store_elements(row_ + index * kPack<T> * stride_, stride_, left, chunk);
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
    return part * kHeldNumbers<T> * place_.lanes;
  }
  __device__ int within(std::int64_t part, std::int64_t count) const {
    const std::int64_t left = count - first_of(part), most = kHeldNumbers<T> * place_.lanes;
    return static_cast<int>(left < 0 ? 0 : left < most ? left : most);
  }

  T* row_;
  std::int64_t stride_;
  bool aligned_;
  const PartPlace& place_;
  uint4* staged_;
};

// Bytes of shared memory in which `arrays` arrays are staged; 0 where the GPU has too few beside
// what kernels have of their own.
inline std::size_t staged_bytes(const tuning::SoftmaxConfig& config, int dtype_size, int arrays,
                                int device) {
  constexpr std::size_t kBeside = 2048;
  const std::size_t bytes =
      std::size_t{kChunkBytes} * config.threads * tuning::softmax_chunks(dtype_size) * arrays;
  return bytes + kBeside <= max_shared_bytes(device) ? bytes : 0;
}

}  // namespace membound::cuda
