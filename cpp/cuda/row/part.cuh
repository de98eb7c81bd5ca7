// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Rows divided into parts, one per block of a cluster: the description of an array, which vectors
// of a part a thread has, and reductions over a row, whose tree does not depend on where its parts
// are processed. Used by softmax and cross-entropy.
#include "cuda/launch/launch.hpp"
#include "cuda/row/array.hpp"
#include "cuda/row/cluster.cuh"
#include "cuda/row/offset.cuh"
#include "cuda/row/reader.cuh"
#include "cuda/row/reduce.cuh"
#include "cuda/softmax/softmax_config.hpp"

namespace membound::cuda {

// Resident blocks per SM, for the widest blocks: while one waits for memory or its barrier, others
// compute. Three blocks leave 40 registers per thread, which is enough for aligned rows of few
// vectors per thread on SMs with room for 1536 threads (8.0 on). The other kernels would spill.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
inline constexpr int kNarrowBlocks = 2;
#else
inline constexpr int kNarrowBlocks = 3;
#endif
template <int kVectors>
inline constexpr int kResidentBlocks = kVectors == tuning::kFewVectors ? kNarrowBlocks : 2;
inline constexpr int kPartWarps = tuning::kSoftmaxThreads / kWarpLanes;

// One array of rows of a kernel.
struct PartArray : RowArray {
  void* data;

  template <class T>
  __device__ T* row(std::int64_t index) const {
    if (rows.rank <= 1) return evenly_spaced_row<T>(index);
    return static_cast<T*>(data) + looped_row_offset(rows, index);
  }
  // For evenly spaced rows.
  template <class T>
  __device__ T* evenly_spaced_row(std::int64_t index) const {
    return static_cast<T*>(data) + index * rows.strides[0];
  }
};

inline PartArray part_array(const void* data, const RowLayout& layout, std::int64_t col_stride,
                            std::int64_t rows, std::int64_t cols, DType dtype) {
  PartArray array{{layout, 0, col_stride, nullptr}, const_cast<void*>(data)};
  std::int64_t row_stride = 0;
  RowArrayBuilder{rows, cols, {}}.place(data, layout, col_stride, dtype_size(dtype), array,
                                        row_stride);
  return array;
}

// 32 bits of -infinity, the padding of vectors past the end of a row. For float64 they are the
// upper half.
inline std::uint32_t absent_bits(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 0xfc00fc00u;
    case DType::kBFloat16: return 0xff80ff80u;
    case DType::kFloat32: return 0xff800000u;
    default: return 0xfff00000u;
  }
}

// Kernels are instantiated by the size of storage: Float16 also stands for bfloat16.
template <class T>
using StorageOf = std::conditional_t<sizeof(T) == 2, Float16, T>;

// Whether all rows of an array consist of whole aligned vectors.
template <class T>
inline bool is_vectorisable(const PartArray& array, std::int64_t cols) {
  bool fits = array.col_stride == 1 && cols % kPack<T> == 0 &&
              reinterpret_cast<std::uintptr_t>(array.data) % kVectorBytes == 0;
  for (int axis = 0; axis < array.rows.rank; ++axis)
    fits = fits && array.rows.strides[axis] % kPack<T> == 0;
  return fits;
}

// Which row, and which part and vectors of it, a thread works on.
struct PartPosition {
  int vectors;  // per thread and part
  int lanes, lane;
  int part;          // index of this block's part of the row
  int parts;         // parts of a row: blocks of its cluster
  std::int64_t row;  // past the last row: the lane only takes part in shuffles

  // narrow: whether a block can have several rows. clusters: whether a row can have several blocks.
  __device__ explicit PartPosition(const tuning::SoftmaxConfig& config, bool narrow = true,
                                   bool clusters = true)
      : vectors(config.vectors),
        lanes(config.lanes),
        part(0),
        parts(clusters ? config.blocks_per_row : 1) {
    if (!narrow) __builtin_assume(lanes > kWarpLanes);
    if (lanes > kWarpLanes && parts > 1) part = cluster_rank();
    locate();
  }

  // Computes lane and row. Called again where keeping them, and what depends on them, would take
  // registers.
  __device__ void locate() {
    std::uint32_t thread, block;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    if (lanes > kWarpLanes) {
      lane = static_cast<int>(thread);
      row = parts > 1 ? cluster_index() : block;
    } else {
      lane = static_cast<int>(thread) & (lanes - 1);
      row = (static_cast<std::int64_t>(block) * blockDim.x + thread) >> log2_of(lanes);
    }
  }

  // The index of this thread's i-th vector of a part.
  __device__ std::int64_t vector(std::int64_t of_part, int i) const {
    return (of_part * vectors + i) * lanes + lane;
  }
  // Clamps a row past the last to the last one. Returns false for it: the thread must not write.
  __device__ bool clamp_row(std::int64_t rows) {
    const bool has_row = row < rows;
    if (!has_row) row = rows - 1;
    return has_row;
  }

  // Reduces over the lanes of a part; every lane gets the result. Rounds count up from 0.
  template <class Value, class Combine>
  __device__ Value reduce(Value mine, int round, Combine combine) const {
    if (lanes <= kWarpLanes) return reduce_lanes(mine, lanes, combine);
    const Value values[1] = {mine};
    return reduce_block<kPartWarps>(values, round, combine);
  }
  // Shares one value per warp with all warps of a part of several warps. Rounds count up from 0.
  template <class Value>
  __device__ const Value* of_warps(const Value& mine, int round) const {
    __shared__ alignas(16) Value slots[2][kPartWarps];
    if (lane % kWarpLanes == 0) slots[round % 2][lane / kWarpLanes] = mine;
    __syncthreads();
    return slots[round % 2];
  }
};

// Conversions for storage that is known by its size, with the dtype at run time.
template <class T>
__device__ inline Numbers<T> unpack_any(const uint4& vector, DType dtype) {
  if constexpr (sizeof(T) == 2) {
    if (dtype == DType::kBFloat16) {
      const Numbers<BFloat16> numbers = unpack<BFloat16>(vector);
      Numbers<T> same;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) same.at[i] = numbers.at[i];
      return same;
    }
  }
  return unpack<T>(vector);
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

// Exchanges values between the parts of a row: a Value from each part in each of kRounds rounds.
template <class Value, int kRounds = 1>
class PartExchange {
 public:
  using Shared = typename ClusterExchange<Value, kRounds>::Shared;
  __device__ PartExchange(Shared& shared, const PartPosition& place)
      : exchange_{shared, place.parts, place.parts}, place_(place) {}

  // Called before anything else.
  __device__ void start() const {
    if (place_.parts > 1) exchange_.cluster_arrive();
  }
  // Called after a reduction over the part: the values of all parts.
  __device__ const Value* all(const Value& mine, int round = 0) const {
    if (place_.lane < kWarpLanes) {
      if (round == 0) exchange_.cluster_wait();
      exchange_.send(round, place_.part, mine);
    }
    return exchange_.collect(round);
  }

 private:
  ClusterExchange<Value, kRounds> exchange_;
  const PartPosition& place_;
};

}  // namespace membound::cuda
