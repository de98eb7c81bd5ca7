// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads that share a row of dx and reduce over it once, in the tree of the persistent kernels
// (persistent_team.cuh), so that a row has the same bits among few rows and among many, with
// dweight and without. The tree of a width, in vectors of 16 bytes:
//   to 32    a power of two of lanes, a vector in each
//   to 512   a warp for each 32 vectors
//   to 1024  a warp for each 64, a lane adding up two that are half a row apart
//   beyond   groups as these, as few as hold the row
// and their sums pairwise. Half the lanes do here, each for two virtual threads (row_tile.cuh).
#include "cuda/row/thread_group.cuh"

namespace membound::cuda {

// To 64 vectors.
struct GradientWarpThreadGroup : WarpThreadGroup {
  static constexpr int kVectorsPerItem = 1;
  static constexpr int kItemsPerThread = 2;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  using WarpThreadGroup::WarpThreadGroup;
  // 32 lanes: two virtual warps. Fewer: the halves of one, which adds them up first.
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int, Combine combine) const {
    if (size < kWarpLanes) return reduce_lanes(combine(values[0], values[1]), size, combine);
    return combine(reduce_warp(values[0], combine), reduce_warp(values[1], combine));
  }
};

// To 1024 vectors.
struct GradientBlockThreadGroup : BlockThreadGroup<1, 16> {
  static constexpr int kVectorsPerItem = 1;
  static constexpr int kItemsPerThread = 2;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  using BlockThreadGroup::BlockThreadGroup;
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int round,
                               Combine combine) const {
    if (size <= kMaxThreads / 2) return reduce_block<16>(values, round, combine);
    const Value pair[1] = {combine(values[0], values[1])};
    return reduce_block<16>(pair, round, combine);
  }
};

// The same of wide rows, for kernels of fewer registers.
struct GradientWideThreadGroup : GradientBlockThreadGroup {
  using GradientBlockThreadGroup::GradientBlockThreadGroup;
};

template <class Value>
using GradientClusterThreadGroup = ClusterThreadGroup<Value, 2, 16, 1>;

}  // namespace membound::cuda
