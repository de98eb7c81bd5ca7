// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Thread groups of the persistent kernels, which take one row after the other. Row sums alternate
// between two buffers by round (0, 1, 2 ...), so that a row costs one barrier. kParts: sums of a
// thread that are reduced apart, in gradients each over at most two vectors. kStages: rows staged
// by SharedPipeline, 0 for RegisterPipeline. kMinBlocks: per SM. kLowRegisterPressure: a row's
// inputs stay in registers until it is done. kSplitRows: aligned rows may have two axes.
#include <type_traits>

#include "cuda/row/cluster.cuh"
#include "cuda/row/warp_sums.cuh"

namespace membound::cuda {

inline constexpr int kPersistentThreads = 512;  // of a block, at most

// Barrier of one group. Barrier 0 is __syncthreads; bar.sync counts whole warps.
__device__ inline void sync_group(int group, int size) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(size) : "memory");
}

// A power of two of lanes within a warp. kSplit: rows are counted in two axes, or by heads, or are
// 2 GiB apart. kLanes: lanes of the tree whose vectors one lane holds; of four the last has none.
// The block shrinks as much, so that its groups and the order of their sums stay, while per-row
// work of a thread serves more vectors.
template <class Value, bool kSplit, int kLanes = 1>
struct LaneGroup {
  static_assert(kLanes == 1 || kLanes == 2 || kLanes == 4);
  static constexpr int kVectorsPerItem = kLanes == 4 ? 3 : kLanes;
  static constexpr int kParts = kVectorsPerItem;
  static constexpr int kStages = 0;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  static constexpr bool kPaired = false;
  static constexpr int kMaxThreads = kPersistentThreads / kLanes;
  static constexpr int kMinBlocks = 2;
  static constexpr bool kOneRow = false;
  static constexpr bool kSplitRows = kSplit;
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
  // The first steps of the tree are within a lane, which holds the vectors of kLanes of its lanes.
  __device__ Value sum(const Value (&parts)[kParts], int) const {
    Value sum = parts[0];
    if constexpr (kLanes == 2) sum = sum + parts[1];
    if constexpr (kLanes == 4) sum = (sum + parts[2]) + (parts[1] + Value(0));
    return reduce_lanes(sum, size, Sum());
  }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};

// Whole warps, several groups to a block. With four vectors a thread has the vectors of both blocks
// of a cluster of two, in the same tree. kPaired: two groups that would be a block each may share
// one; the same kernel also runs blocks of one group, or of several narrower ones.
template <class Value, int kVectorsPerItemOf, int kStagesOf, int kMaxThreadsOf, int kMinBlocksOf,
          bool kPairedOf = false>
struct WarpGroup {
  static constexpr int kVectorsPerItem = kVectorsPerItemOf;
  static constexpr int kParts = kVectorsPerItem > 2 ? kVectorsPerItem / 2 : 1;
  static constexpr int kStages = kStagesOf;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  static constexpr bool kPaired = kPairedOf;
  static constexpr int kMaxThreads = kPaired ? 2 * kMaxThreadsOf : kMaxThreadsOf;
  static constexpr int kMinBlocks = kMinBlocksOf;  // before pairing
  static constexpr bool kOneRow = true;
  static constexpr bool kSplitRows = false;
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
  // Half-warps reduce two values at once: a Pair, or two parts that make up one.
  static constexpr int kSums = std::is_class_v<Value> ? kParts : 1;
  using Part = std::conditional_t<std::is_class_v<Value> || kParts == 1, Value, Pair<Value>>;
  static __device__ Part part(const Value (&parts)[kParts], int i) {
    if constexpr (std::is_same_v<Part, Value>) {
      return parts[i];
    } else {
      return {parts[0], parts[1]};
    }
  }

  // A group has at least two warps. Only single sums of staged rows have registers for two
  // addresses.
  WarpSums<Part, kSums, kMaxWarps / 2, std::is_class_v<Value> || kStages == 0> sums_;
};

// A cluster of blocks, whose threads form kGroups groups with a row each.
template <class Value, int kVectorsPerItemOf, int kStagesOf, int kPartsOf = kVectorsPerItemOf / 2,
          int kGroups = 1, int kMaxThreadsOf = kPersistentThreads, int kMinBlocksOf = 1>
struct ClusterGroup {
  static constexpr int kVectorsPerItem = kVectorsPerItemOf;
  static constexpr int kParts = kPartsOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kItemsPerThread * kVectorsPerItem;
  static constexpr bool kPaired = false;
  static constexpr int kMaxThreads = kMaxThreadsOf;
  static constexpr int kMinBlocks = kMinBlocksOf;
  static constexpr bool kOneRow = true;
  static constexpr bool kSplitRows = false;
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
  // Sums of the next row may be sent while those of a row are still in flight: send(), then
  // collect().
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
    // A block with two parts sends both, next to each other: the slots are the row's parts in
    // order.
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
  // Four buffers are enough: a block sends row r + 4 after it has collected r + 2, which the others
  // sent only after they had collected r.
  static constexpr int kExchanges = 4;
  using Exchange = ClusterExchange<Part, kExchanges>;
  __device__ Exchange exchange(int of) const {
    __shared__ typename Exchange::Shared shared[kGroups];
    return {shared[of], blocks, blocks};
  }
};

}  // namespace membound::cuda
