// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Linear indices of a problem's dimensions, and the elements that they stand for in each array.
#include <cstdint>

#include "ops/array/problems.hpp"

namespace membound::cuda {

// Divides numbers below 2^63 with a multiplication (Granlund and Montgomery 1994). A 64-bit
// division is a hundred instructions on GPUs.
struct Divider {
  std::uint64_t magic;
  std::int64_t extent;
  int shift;

  __device__ std::int64_t quotient(std::int64_t number) const {
    const auto twice = static_cast<std::uint64_t>(number) << 1;
    return static_cast<std::int64_t>(__umul64hi(twice, magic) >> shift);
  }
};

inline Divider divider_of(std::int64_t extent) {
  using Wide = unsigned __int128;
  int shift = 0;
  while ((Wide{1} << shift) < static_cast<Wide>(extent)) ++shift;
  const Wide power = Wide{1} << (63 + shift), divisor = static_cast<Wide>(extent < 1 ? 1 : extent);
  return {static_cast<std::uint64_t>((power + divisor - 1) / divisor), extent, shift};
}

struct ArrayIndex {
  int rank = 0;
  std::int64_t size = 1;
  Divider extents[kMaxRank];

  // offsets[k] = the element of array k; returns the coordinate in the last dimension.
  // kDividesOnce: the one that the loop finds, without another division.
  template <bool kDividesOnce = false, int kArrays>
  __device__ std::int64_t offsets(std::int64_t linear,
                                  const std::int64_t (&strides)[kArrays][kMaxRank],
                                  std::int64_t (&offsets)[kArrays]) const {
    std::int64_t last = linear;
    if (!kDividesOnce) last -= outer(linear) * (rank > 1 ? extents[rank - 1].extent : 0);
#pragma unroll
    for (int k = 0; k < kArrays; ++k) offsets[k] = 0;
#pragma unroll 1
    for (int axis = rank - 1; axis > 0; --axis) {
      const std::int64_t rest = extents[axis].quotient(linear);
      const std::int64_t coordinate = linear - rest * extents[axis].extent;
      if (kDividesOnce && axis == rank - 1) last = coordinate;
#pragma unroll
      for (int k = 0; k < kArrays; ++k) offsets[k] += coordinate * strides[k][axis];
      linear = rest;
    }
#pragma unroll
    for (int k = 0; k < kArrays; ++k) offsets[k] += linear * strides[k][0];
    return last;
  }
  // The linear index in all dimensions but the last.
  __device__ std::int64_t outer(std::int64_t linear) const {
    return rank > 1 ? extents[rank - 1].quotient(linear) : 0;
  }
};

inline ArrayIndex array_index(const std::int64_t* shape, int rank) {
  ArrayIndex index;
  index.rank = rank;
  for (int axis = 0; axis < rank; ++axis) {
    index.extents[axis] = divider_of(shape[axis]);
    index.size *= shape[axis];
  }
  return index;
}
inline ArrayIndex array_index(const ArrayDims& dims) { return array_index(dims.shape, dims.rank); }

}  // namespace membound::cuda
