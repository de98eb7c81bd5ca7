// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Thread groups: the threads that share a row and reduce over it, in rounds 0, 1, 2 ... A row is
// summed by virtual threads (items) of kVectorsPerItem vectors each, in a tree that depends on its
// width alone. A thread takes kItemsPerThread items: one where rows are few and latency counts,
// several where rows are many and bytes in flight count. The bits of the result are the same.
#include "cuda/row/cluster.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Traits. kSplitRows: kernels of aligned rows know heads, and gradients two row axes. kSharesBlock,
// kSharesWarp: a block, or a warp, has several rows; those of a warp branch together. kVectors: per
// thread, fewer than kItemsPerThread * kVectorsPerItem where rows leave the last slots empty.
// kStagesRow: forward rows need too many registers and are staged in shared memory
// (staged_row.cuh). Constructors take threads per row, blocks per row, and the first block of the
// grid that has rows.

// Some lanes of a warp per row, several rows per block; a lane takes kItemsPerThread items. size:
// threads per row. reduce_part() reduces over the part of a row that one block has.
template <int kItemsPerThreadOf, int kVectorsOf = 2 * kItemsPerThreadOf>
struct LaneThreadGroup {
  static_assert(kItemsPerThreadOf == 1 || kItemsPerThreadOf == 2);
  static constexpr bool kSplitRows = true;
  static constexpr int kVectorsPerItem = 2;
  static constexpr int kItemsPerThread = kItemsPerThreadOf;
  static constexpr int kVectors = kVectorsOf;
  static constexpr bool kStagesRow = false;
  static constexpr int kMaxThreads = 256;
  static constexpr bool kClusters = false;
  static constexpr bool kSharesBlock = true;
  static constexpr bool kSharesWarp = true;
  int size;
  int lane;
  int rank = 0;
  std::int64_t row;

  __device__ LaneThreadGroup(int lanes, int, int first_block)
      : size(lanes / kItemsPerThread),
        lane(static_cast<int>(threadIdx.x) & (size - 1)),
        row((static_cast<std::int64_t>(blockIdx.x - first_block) * blockDim.x + threadIdx.x) >>
            log2_of(size)) {}
  __device__ void start() const {}
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int, Combine combine) const {
    return reduce_lanes(reduce_array<kItemsPerThread>(values, combine), size, combine);
  }
  // Rows of one warp decide together, because the shuffles need every lane.
  __device__ bool any(bool mine) const { return __any_sync(0xffffffffu, mine); }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};
using WarpThreadGroup = LaneThreadGroup<1>;

// A whole warp per row, which takes the items of kItemsPerThread virtual warps; several rows per
// block.
template <int kItemsPerThreadOf, int kVectorsOf = 2 * kItemsPerThreadOf>
struct CoarsenedWarpThreadGroup {
  static constexpr bool kSplitRows = false;
  static constexpr int kVectorsPerItem = 2;
  static constexpr int kItemsPerThread = kItemsPerThreadOf;
  static constexpr int kVectors = kVectorsOf;
  static constexpr bool kStagesRow = kVectors > 3;
  static constexpr int kMaxThreads = 128;
  static constexpr bool kClusters = false;
  static constexpr bool kSharesBlock = true;
  static constexpr bool kSharesWarp = false;
  int size = kWarpLanes;
  int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int rank = 0;
  std::int64_t row;

  __device__ CoarsenedWarpThreadGroup(int, int, int first_block)
      : row((static_cast<std::int64_t>(blockIdx.x - first_block) * blockDim.x + threadIdx.x) /
            kWarpLanes) {}
  __device__ void start() const {}
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int, Combine combine) const {
    return reduce_items(values, combine);
  }
  __device__ bool any(bool mine) const { return mine; }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};

// A whole block per row, which takes the items of at most 16 virtual warps.
template <int kItemsPerThreadOf, int kVectorsPerItemOf = 2,
          int kVectorsOf = kItemsPerThreadOf * kVectorsPerItemOf,
          bool kStagesRowOf = (kVectorsOf > 3)>
struct BlockThreadGroup {
  static constexpr bool kSplitRows = false;
  static constexpr int kVectorsPerItem = kVectorsPerItemOf;
  static constexpr int kItemsPerThread = kItemsPerThreadOf;
  static constexpr int kVectors = kVectorsOf;
  static constexpr bool kStagesRow = kStagesRowOf;
  static constexpr int kMaxWarps = 16;
  static constexpr int kMaxThreads = kMaxWarps * kWarpLanes / kItemsPerThread;
  static constexpr bool kClusters = false;
  static constexpr bool kSharesBlock = false;
  static constexpr bool kSharesWarp = false;
  int size = static_cast<int>(blockDim.x);
  int lane = static_cast<int>(threadIdx.x);
  int rank = 0;
  std::int64_t row;

  __device__ BlockThreadGroup(int, int, int first_block) : row(blockIdx.x - first_block) {}
  __device__ void start() const {}
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kItemsPerThread], int round,
                               Combine combine) const {
    return reduce_block<kMaxWarps, true>(values, round, combine);
  }
  __device__ bool any(bool mine) const { return mine; }  // every thread has the same sum
  __device__ void sync() const { __syncthreads(); }
  __device__ int first_thread() const { return 0; }
};

// The same with fewer threads, for three resident blocks per SM.
struct SmallBlockThreadGroup : BlockThreadGroup<1> {
  using BlockThreadGroup<1>::BlockThreadGroup;
  static constexpr int kMaxThreads = 384;
};

// A cluster of blocks per row. Each block has one group of the row, and the blocks exchange Values.
template <class Value, int kVectorsPerItemOf, int kMaxWarps, int kRounds>
struct ClusterThreadGroup {
  static constexpr bool kSplitRows = false;
  static constexpr int kVectorsPerItem = kVectorsPerItemOf;
  static constexpr int kItemsPerThread = 1;
  static constexpr int kVectors = kVectorsPerItem;
  static constexpr bool kStagesRow = kVectorsPerItem > 2;
  static constexpr int kMaxThreads = kMaxWarps * kWarpLanes;
  static constexpr bool kClusters = true;
  static constexpr bool kSharesBlock = false;
  static constexpr bool kSharesWarp = false;
  int size = static_cast<int>(blockDim.x);
  int lane = static_cast<int>(threadIdx.x);
  int rank = cluster_rank();
  int blocks;
  std::int64_t row;

  __device__ ClusterThreadGroup(int, int blocks_per_row, int first_block)
      : blocks(blocks_per_row), row(cluster_index() - first_block / blocks_per_row) {}
  __device__ void start() const { exchange().cluster_arrive(); }
  template <class Part, class Combine>
  __device__ Part reduce_part(const Part (&values)[1], int round, Combine combine) const {
    return reduce_block<kMaxWarps>(values, round, combine);
  }
  // Sends a part to every block of the cluster, in rounds 0 to kRounds - 1 that are numbered apart
  // from those of reduce_part(). A round can be collected while others are in flight.
  __device__ void send(int round, Value part) const {
    if (lane >= kWarpLanes) return;
    const Exchange parts = exchange();
    if (round == 0) parts.cluster_wait();
    parts.send(round, rank, part);
  }
  __device__ const Value* collect(int round) const { return exchange().collect(round); }
  __device__ bool any(bool mine) const { return mine; }
  __device__ int first_thread() const { return 0; }

 private:
  using Exchange = ClusterExchange<Value, kRounds>;
  __device__ Exchange exchange() const {
    __shared__ typename Exchange::Shared shared;
    return {shared, blocks, blocks};
  }
};

}  // namespace membound::cuda
