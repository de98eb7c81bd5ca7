// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads that work on many rows one after the other: what they exchange alternates between two
// buffers, so that a row costs one barrier. round: 0, 1, 2 ... over the rows. kParts: sums of a
// thread that are reduced apart: for gradients each over at most two vectors, in their tree
// (gradient_team.cuh).
// kRing: the rows that SharedPipeline holds, 0 for RegisterPipeline; kMinBlocks: per
// multiprocessor; kLowRegisterPressure: threads have registers for what a row is made of until it
// is done. kSplitRows: aligned rows may be counted in two axes; in each row of a wide one that
// costs more than it saves.
#include <type_traits>

#include "cuda/row/cluster.cuh"
#include "cuda/row/warp_sums.cuh"

namespace membound::cuda {

inline constexpr int kPersistentThreads = 512;  // of a block, at most

// Of the threads of a group. Barrier 0 is __syncthreads; bar.sync is for whole warps.
__device__ inline void sync_group(int group, int size) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(size) : "memory");
}

// Lanes of a warp; a power of two. kSplit: rows are counted in two axes, or by heads, or are 2 GiB
// apart. kLanes: that one plays, two or four, the last of which has no vector: as many groups to a
// block, whose sums go in the same order, and what a thread does once for a row serves more of it.
template <class Value, bool kSplit, int kLanes = 1>
struct LaneGroup {
  static_assert(kLanes == 1 || kLanes == 2 || kLanes == 4);
  static constexpr int kVectorsPerItem = kLanes == 4 ? 3 : kLanes;
  static constexpr int kParts = kVectorsPerItem;
  static constexpr int kRing = 0;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  static constexpr bool kPaired = false;
  static constexpr int kMaxThreads = kPersistentThreads / kLanes;
  static constexpr int kMinBlocks = 2;
  static constexpr bool kOneRow = false;
  static constexpr bool kSplitRows = kSplit;
  static constexpr bool kUniformShift = false;
  static constexpr bool kStagesRow = false;
  static constexpr bool kClusters = false;
  static constexpr bool kLowRegisterPressure = kLanes > 1;
  int size;
  int lane;
  int rank = 0;
  int group;

  __device__ LaneGroup(int lanes, int)
      : size(lanes / kLanes),
        lane(static_cast<int>(threadIdx.x) & (size - 1)),
        group(static_cast<int>(threadIdx.x) >> log2_of(size)) {}
  __device__ void start() const {}
  __device__ int group_in_grid() const { return static_cast<int>(blockIdx.x); }
  // The first steps of the lanes that it plays are this lane's.
  __device__ Value sum(const Value (&parts)[kParts], int) const {
    Value sum = parts[0];
    if constexpr (kLanes == 2) sum = sum + parts[1];
    if constexpr (kLanes == 4) sum = (sum + parts[2]) + (parts[1] + Value(0));
    return reduce_lanes(sum, size, Sum());
  }
  __device__ void sync() const { __syncwarp(); }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};

// Warps of a block, several groups of them in a block. With four vectors of a thread it plays both
// blocks of a cluster of two. kPaired: two groups that would be a block each may be one block;
// blocks of one group, or of several narrower ones, run in the same kernel.
template <class Value, int kVectorsPerItemOf, int kRingOf, int kMaxThreadsOf, int kMinBlocksOf,
          bool kPairedOf = false>
struct WarpGroup {
  static constexpr int kVectorsPerItem = kVectorsPerItemOf;
  static constexpr int kParts = kVectorsPerItem > 2 ? kVectorsPerItem / 2 : 1;
  static constexpr int kRing = kRingOf;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  static constexpr bool kPaired = kPairedOf;
  static constexpr int kMaxThreads = kPaired ? 2 * kMaxThreadsOf : kMaxThreadsOf;
  static constexpr int kMinBlocks = kMinBlocksOf;  // before they are paired
  static constexpr bool kOneRow = true;
  static constexpr bool kSplitRows = false;
  static constexpr bool kUniformShift = true;
  static constexpr bool kStagesRow = false;
  static constexpr bool kClusters = false;
  static constexpr bool kLowRegisterPressure = false;
  static constexpr int kMaxWarps = kPersistentThreads / kWarpLanes;
  int size;
  int lane;
  int rank = 0;
  int group;

  __device__ WarpGroup(int lanes, int)
      : size(lanes),
        lane(static_cast<int>(threadIdx.x) % lanes),
        group(static_cast<int>(threadIdx.x) / lanes),
        sums_(group, lane / kWarpLanes) {}
  __device__ void start() const { sums_.clear(); }
  __device__ int group_in_grid() const { return static_cast<int>(blockIdx.x); }
  __device__ Value sum(const Value (&parts)[kParts], int round) const {
    Part sums[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = part(parts, i);
    sums_.sum(sums, round, [&] { sync(); });
    if constexpr (kSums > 1) {
      return sums[0] + sums[1];
    } else if constexpr (std::is_same_v<Part, Value>) {
      return sums[0];
    } else {
      return sums[0].a + sums[0].b;
    }
  }
  __device__ void sync() const { sync_group(group, size); }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }

 private:
  // What is summed at once by halves of a warp: a Pair, or one of two single parts.
  static constexpr int kSums = std::is_class_v<Value> ? kParts : 1;
  using Part = std::conditional_t<std::is_class_v<Value> || kParts == 1, Value, Pair<Value>>;
  static __device__ Part part(const Value (&parts)[kParts], int i) {
    if constexpr (std::is_same_v<Part, Value>) {
      return parts[i];
    } else {
      return {parts[0], parts[1]};
    }
  }

  // At least two warps in a group. Rings of single sums have registers for two addresses.
  WarpSums<Part, kSums, kMaxWarps / 2, std::is_class_v<Value> || kRing == 0> sums_;
};

// Group, or its pairs where a multiprocessor has two of its blocks with one vector in a thread.
template <class Group, bool kMayPair>
struct PairsOf {
  using Type = Group;
};
template <class Value, int kRing>
struct PairsOf<WarpGroup<Value, 1, kRing, kPersistentThreads, 2>, true> {
  using Type = WarpGroup<Value, 1, kRing, kPersistentThreads, 2, true>;
};

// A cluster of blocks, whose threads are kGroups groups, a row each at a time.
template <class Value, int kVectorsPerItemOf, int kRingOf, int kPartsOf = kVectorsPerItemOf / 2,
          int kGroups = 1, int kMaxThreadsOf = kPersistentThreads, int kMinBlocksOf = 1>
struct ClusterGroup {
  static constexpr int kVectorsPerItem = kVectorsPerItemOf;
  static constexpr int kParts = kPartsOf;
  static constexpr int kRing = kRingOf;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  static constexpr bool kPaired = false;
  static constexpr int kMaxThreads = kMaxThreadsOf;
  static constexpr int kMinBlocks = kMinBlocksOf;
  static constexpr bool kOneRow = true;
  static constexpr bool kSplitRows = false;
  static constexpr bool kUniformShift = true;
  static constexpr bool kStagesRow = false;
  static constexpr bool kClusters = true;
  static constexpr bool kLowRegisterPressure = false;
  static constexpr int kMaxWarps = kPersistentThreads / kWarpLanes;
  int size = static_cast<int>(blockDim.x) / kGroups;
  int lane = static_cast<int>(threadIdx.x);
  int rank = cluster_rank();
  int group = 0;
  int blocks;

  __device__ ClusterGroup(int, int blocks_per_row) : blocks(blocks_per_row) {
    if constexpr (kGroups > 1) {
      group = lane / size;
      lane -= group * size;
      __builtin_assume(lane >= 0);
    }
  }
  __device__ void start() const {
#pragma unroll
    for (int of = 0; of < kGroups; ++of) exchange(of).prepare();
    exchange(0).arrive();
    const int warps = size / kWarpLanes;
    if (lane >= warps && lane < kMaxWarps) slots()[0][lane] = slots()[1][lane] = Part(0);
  }
  __device__ int group_in_grid() const { return static_cast<int>(cluster_index()); }
  // The sums of a row may be on their way while those of the next are sent.
  __device__ Value sum(const Value (&parts)[kParts], int round) const {
    send(parts, round);
    return collect(round);
  }
  __device__ void send(const Value (&parts)[kParts], int round) const {
    Part* const of_warps = slots()[round % 2];
    if constexpr (std::is_class_v<Value>) {
      Value* const of_warp = reinterpret_cast<Value*>(of_warps + lane / kWarpLanes);
#pragma unroll
      for (int i = 0; i < kParts; ++i) store_half(of_warp[i], sum_halves(parts[i]));
    } else {
      const Part of_warp = reduce_warp(together(parts), Sum());
      if (lane % kWarpLanes == 0) of_warps[lane / kWarpLanes] = of_warp;
    }
    sync();
    if (lane < kWarpLanes) {
      if (round == 0) exchange(group).cluster_wait();
      exchange(group).send(round % kExchanges, rank,
                           combine_slots_by_lanes<kMaxWarps>(of_warps, Sum()));
    }
  }
  __device__ Value collect(int round) const {
    const auto sums = exchange(group);
    const int place = round % kExchanges;
    // Of a block with two parts both, beside each other: parts of the row in their order.
    const auto of_parts =
        reinterpret_cast<const Value*>(sums.collect(place, round / kExchanges % 2));
    if (lane == 0) sums.expect(place);
    if constexpr (std::is_class_v<Value>) {
      return sum_slots(half_of(of_parts[lane % kHalfWarp]));
    } else {
      return combine_slots<kMaxGroups>(of_parts, Sum());
    }
  }
  __device__ void sync() const {
    if constexpr (kGroups == 1) {
      __syncthreads();
    } else {
      sync_group(group, size);
    }
  }
  __device__ int first_thread() const { return kGroups == 1 ? 0 : group * size; }

 private:
  using Part = std::conditional_t<kParts == 1, Value, Pair<Value>>;
  static __device__ Part together(const Value (&parts)[kParts]) {
    if constexpr (kParts == 1) {
      return parts[0];
    } else {
      return {parts[0], parts[1]};
    }
  }
  using Slots = Part[kMaxWarps];
  __device__ Slots* slots() const {
    __shared__ alignas(16) Part all[kGroups][2][kMaxWarps];
    return all[group];
  }
  // A block that sends for row r + 4 has collected for r + 2; others have sent for that, which they
  // do after they have collected for r.
  static constexpr int kExchanges = 4;
  using Exchange = ClusterExchange<Part, kExchanges>;
  __device__ Exchange exchange(int of) const {
    __shared__ typename Exchange::Shared shared[kGroups];
    return {shared[of], blocks, blocks};
  }
};

}  // namespace membound::cuda
