// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Thread groups that share a row of dx and reduce over it once, in the tree of the persistent
// kernels (persistent_group.cuh): a row has the same bits among few rows and many, with dweight and
// without. The tree by 16-byte vectors of a row: up to 32, a power of two of lanes with one each;
// up to 512, a warp per 32; up to 1024, a warp per 64, where a lane first adds two half a row
// apart; beyond, as few such groups as hold the row. Their sums are added pairwise. The groups
// below have half the lanes: each thread has two items.
#include "cuda/row/thread_group.cuh"

namespace membound::cuda {

// Up to 64 vectors.
struct GradientWarpThreadGroup : WarpThreadGroup {
  static constexpr int kVectorsPerItem = 1;
  static constexpr int kItemsPerThread = 2;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  using WarpThreadGroup::WarpThreadGroup;
  // 32 lanes are two warps of the tree. Fewer hold two halves of one warp, which its first step
  // adds.
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int, Combine combine) const {
    if (size < kWarpLanes) return reduce_lanes(combine(values[0], values[1]), size, combine);
    return combine(reduce_warp(values[0], combine), reduce_warp(values[1], combine));
  }
};

// Up to 1024 vectors.
struct GradientBlockThreadGroup : BlockThreadGroup<1> {
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

// The same for wide rows: a type of its own selects kernels with fewer registers.
struct GradientWideThreadGroup : GradientBlockThreadGroup {
  using GradientBlockThreadGroup::GradientBlockThreadGroup;
};

template <class Value>
using GradientClusterThreadGroup = ClusterThreadGroup<Value, 2, 16, 1>;

}  // namespace membound::cuda
