// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads that work on many rows one after the other: what they exchange alternates between two
// buffers, so that a row costs one barrier. turn: 0, 1, 0, 1 ... over the rows. kParts: sums of a
// thread, each over at most two chunks, that are reduced apart: in the tree of gradient_team.cuh.
// kRing: the rows that RingFeed holds, 0 for RegisterFeed; kMinBlocks: per multiprocessor.
// kSplitRows: aligned rows may be counted in two axes; in each row of a wide one that costs more
// than it saves.
#include <type_traits>

#include "cuda/cluster.cuh"
#include "cuda/reduce.cuh"

namespace membound::cuda {

inline constexpr int kPersistentThreads = 512;  // of a block, at most

// Lanes of a warp; a power of two.
template <class Value>
struct LaneGroup {
  static constexpr int kVecs = 1;
  static constexpr int kParts = 1;
  static constexpr int kRing = 0;
  static constexpr int kFold = 1;
  static constexpr int kMaxThreads = kPersistentThreads;
  static constexpr int kMinBlocks = 2;
  static constexpr bool kOneRow = false;
  static constexpr bool kSplitRows = true;
  static constexpr bool kUniformShift = false;
  static constexpr bool kParks = false;
  static constexpr bool kClusters = false;
  int size;
  int lane;
  int rank = 0;
  int group;

  __device__ LaneGroup(int lanes, int)
      : size(lanes),
        lane(static_cast<int>(threadIdx.x) & (lanes - 1)),
        group(static_cast<int>(threadIdx.x) >> log2_of(lanes)) {}
  __device__ void start() const {}
  __device__ int team() const { return static_cast<int>(blockIdx.x); }
  __device__ Value sum(const Value (&parts)[1], int, std::int64_t) const {
    return reduce_lanes(parts[0], size, Sum());
  }
  __device__ void sync() const { __syncwarp(); }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};

// Warps of a block, several groups of them in a block.
template <class Value, int kVecsOf, int kRingOf, int kMaxThreadsOf, int kMinBlocksOf>
struct WarpGroup {
  static constexpr int kVecs = kVecsOf;
  static constexpr int kParts = 1;
  static constexpr int kRing = kRingOf;
  static constexpr int kFold = 1;
  static constexpr int kMaxThreads = kMaxThreadsOf;
  static constexpr int kMinBlocks = kMinBlocksOf;
  static constexpr bool kOneRow = true;
  static constexpr bool kSplitRows = false;
  static constexpr bool kUniformShift = true;
  static constexpr bool kParks = false;
  static constexpr bool kClusters = false;
  static constexpr int kMaxWarps = kPersistentThreads / kWarpLanes;
  int size;
  int lane;
  int rank = 0;
  int group;

  __device__ WarpGroup(int lanes, int)
      : size(lanes),
        lane(static_cast<int>(threadIdx.x) % lanes),
        group(static_cast<int>(threadIdx.x) / lanes) {}
  __device__ void start() const {
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kMaxWarps * kMaxWarps / 2;
         i += static_cast<int>(blockDim.x)) {
      (&slots()[0][0][0])[i] = 0;
    }
    __syncthreads();
  }
  __device__ int team() const { return static_cast<int>(blockIdx.x); }
  __device__ Value sum(const Value (&parts)[1], int turn, std::int64_t) const {
    const Value of_warp = reduce_warp(parts[0], Sum());
    if (lane % kWarpLanes == 0) slots()[turn][group][lane / kWarpLanes] = of_warp;
    sync();
    // Pairs are 38 instructions in every lane, and 17 with a slot in each.
    if constexpr (std::is_class_v<Value>) {
      return combine_slots_by_lanes<kMaxWarps>(slots()[turn][group], Sum());
    } else {
      return combine_slots<kMaxWarps>(slots()[turn][group], Sum());
    }
  }
  // Barrier 0 is __syncthreads. bar.sync is for whole warps.
  __device__ void sync() const {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(size) : "memory");
  }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }

 private:
  // At least two warps in a group.
  using Slots = Value[kMaxWarps / 2][kMaxWarps];
  __device__ Slots* slots() const {
    __shared__ alignas(16) Value all[2][kMaxWarps / 2][kMaxWarps];
    return all;
  }
};

// A cluster of blocks.
template <class Value, int kVecsOf, int kRingOf>
struct ClusterGroup {
  static constexpr int kVecs = kVecsOf;
  static constexpr int kParts = kVecsOf / 2;
  static constexpr int kRing = kRingOf;
  static constexpr int kFold = 1;
  static constexpr int kMaxThreads = kPersistentThreads;
  static constexpr int kMinBlocks = 1;
  static constexpr bool kOneRow = true;
  static constexpr bool kSplitRows = false;
  static constexpr bool kUniformShift = true;
  static constexpr bool kParks = false;
  static constexpr bool kClusters = true;
  static constexpr int kMaxWarps = kPersistentThreads / kWarpLanes;
  int size = static_cast<int>(blockDim.x);
  int lane = static_cast<int>(threadIdx.x);
  int rank = cluster_rank();
  int group = 0;
  int blocks;

  __device__ ClusterGroup(int, int blocks_per_row) : blocks(blocks_per_row) {}
  __device__ void start() const { exchange().announce(); }
  __device__ int team() const { return static_cast<int>(cluster_index()); }
  // round: 0, 1, 2 ... over the rows.
  __device__ Value sum(const Value (&parts)[kParts], int turn, std::int64_t round) const {
    __shared__ alignas(16) Part slots[2][kMaxWarps];
    const Part of_thread[1] = {together(parts)};
    const auto sums = exchange();
    store_warp_values<kMaxWarps>(of_thread, slots[turn], Sum());
    __syncthreads();
    if (lane < kWarpLanes) {
      if (round == 0) sums.wait_for_peers();
      sums.send(turn, rank, combine_slots<kMaxWarps>(slots[turn], Sum()));
    }
    const Part* of_blocks = sums.collect(turn, static_cast<int>(round / 2 % 2));
    if (lane == 0) sums.expect(turn);
    // Of a block with two parts both, beside each other: parts of the row in their order.
    return combine_slots<kMaxGroups>(reinterpret_cast<const Value*>(of_blocks), Sum());
  }
  __device__ void sync() const { __syncthreads(); }
  __device__ int first_thread() const { return 0; }

 private:
  using Part = std::conditional_t<kParts == 1, Value, Pair<Value>>;
  static __device__ Part together(const Value (&parts)[kParts]) {
    if constexpr (kParts == 1) {
      return parts[0];
    } else {
      return {parts[0], parts[1]};
    }
  }
  using Exchange = ClusterExchange<Part, 2>;
  __device__ Exchange exchange() const {
    __shared__ typename Exchange::Shared shared;
    return {shared, blocks, blocks};
  }
};

}  // namespace membound::cuda
