// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads that share a row and reduce over it in rounds 0, 1, 2 ... A row is summed by
// virtual threads of kVecs chunks each, in a tree that its width fixes. A thread plays kFold of
// them: one where rows are few and latency counts, several where rows are many and bytes in flight
// count. The bits are the same.
#include "cuda/row/cluster.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// kUniformShift: the threads of a warp work on the same row, and code may grow for that
// (with_shift). Each team is made from the threads of a row (lanes), its blocks, and the first
// block of the grid that works on rows. kSplitRows: gradients of aligned rows may be counted in two
// axes. kSharesBlock: a block works on several rows, kSharesWarp: a warp, which go one way
// together. A team's part of a row is what one block holds of it. kChunks: of a thread, fewer than
// kFold * kVecs where rows leave the last empty. kParks: a thread has more chunks than registers
// should hold, so that a forward row waits in shared memory (parked_row.cuh).

// Lanes of a warp, each of which plays kFold; several rows per block. kChunks: as above.
template <int kFoldOf, int kChunksOf = 2 * kFoldOf>
struct LanesTeam {
  static_assert(kFoldOf == 1 || kFoldOf == 2);
  static constexpr bool kSplitRows = true;
  static constexpr int kVecs = 2;
  static constexpr int kFold = kFoldOf;
  static constexpr int kChunks = kChunksOf;
  static constexpr bool kParks = false;
  static constexpr int kMaxThreads = 256;
  static constexpr bool kUniformShift = false;
  static constexpr bool kClusters = false;
  static constexpr bool kSharesBlock = true;
  static constexpr bool kSharesWarp = true;
  int size;
  int lane;
  int rank = 0;
  std::int64_t row;

  __device__ LanesTeam(int lanes, int, int first_block)
      : size(lanes / kFold),
        lane(static_cast<int>(threadIdx.x) & (size - 1)),
        row((static_cast<std::int64_t>(blockIdx.x - first_block) * blockDim.x + threadIdx.x) >>
            log2_of(size)) {}
  __device__ void start() const {}
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kFold], int, Combine combine) const {
    return reduce_lanes(reduce_array<kFold>(values, combine), size, combine);
  }
  // Rows of one warp decide together: the shuffles need every lane.
  __device__ bool any(bool mine) const { return __any_sync(0xffffffffu, mine); }
  // Before threads of the team read what others of it wrote to shared memory.
  __device__ void sync() const { __syncwarp(); }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};
using WarpTeam = LanesTeam<1>;

// A warp that plays kFold virtual ones; several rows per block.
template <int kFoldOf, int kChunksOf = 2 * kFoldOf>
struct FoldedWarpTeam {
  static constexpr bool kSplitRows = false;
  static constexpr int kVecs = 2;
  static constexpr int kFold = kFoldOf;
  static constexpr int kChunks = kChunksOf;
  static constexpr bool kParks = kChunks > 3;
  static constexpr int kMaxThreads = 128;
  static constexpr bool kUniformShift = true;
  static constexpr bool kClusters = false;
  static constexpr bool kSharesBlock = true;
  static constexpr bool kSharesWarp = false;
  int size = kWarpLanes;
  int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  int rank = 0;
  std::int64_t row;

  __device__ FoldedWarpTeam(int, int, int first_block)
      : row((static_cast<std::int64_t>(blockIdx.x - first_block) * blockDim.x + threadIdx.x) /
            kWarpLanes) {}
  __device__ void start() const {}
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kFold], int, Combine combine) const {
    return reduce_folds(values, combine);
  }
  __device__ bool any(bool mine) const { return mine; }
  __device__ void sync() const { __syncwarp(); }
  __device__ int first_thread() const { return static_cast<int>(threadIdx.x) - lane; }
};

// A whole block, as at most kMaxWarps virtual warps.
template <int kFoldOf, int kMaxWarps, int kVecsOf = 2, int kChunksOf = kFoldOf * kVecsOf,
          bool kParksOf = (kChunksOf > 3)>
struct BlockTeam {
  static constexpr bool kSplitRows = false;
  static constexpr int kVecs = kVecsOf;
  static constexpr int kFold = kFoldOf;
  static constexpr int kChunks = kChunksOf;
  static constexpr bool kParks = kParksOf;
  static constexpr int kMaxThreads = kMaxWarps * kWarpLanes / kFold;
  static constexpr bool kUniformShift = true;
  static constexpr bool kClusters = false;
  static constexpr bool kSharesBlock = false;
  static constexpr bool kSharesWarp = false;
  int size = static_cast<int>(blockDim.x);
  int lane = static_cast<int>(threadIdx.x);
  int rank = 0;
  std::int64_t row;

  __device__ BlockTeam(int, int, int first_block) : row(blockIdx.x - first_block) {}
  __device__ void start() const {}
  template <class Value, class Combine>
  __device__ Value reduce_part(const Value (&values)[kFold], int round, Combine combine) const {
    return reduce_block<kMaxWarps>(values, round, combine);
  }
  __device__ bool any(bool mine) const { return mine; }  // the sum is the same in every thread
  __device__ void sync() const { __syncthreads(); }
  __device__ int first_thread() const { return 0; }
};

// The same where three of them are to share a multiprocessor.
struct SmallBlockTeam : BlockTeam<1, 16> {
  using BlockTeam<1, 16>::BlockTeam;
  static constexpr int kMaxThreads = 384;
};

// A cluster of blocks, one group of the row each, that exchange Values.
template <class Value, int kVecsOf, int kMaxWarps, int kRounds>
struct ClusterTeam {
  static constexpr bool kSplitRows = false;
  static constexpr int kVecs = kVecsOf;
  static constexpr int kFold = 1;
  static constexpr int kChunks = kVecs;
  static constexpr bool kParks = kVecs > 2;
  static constexpr int kMaxThreads = kMaxWarps * kWarpLanes;
  static constexpr bool kUniformShift = true;
  static constexpr bool kClusters = true;
  static constexpr bool kSharesBlock = false;
  static constexpr bool kSharesWarp = false;
  int size = static_cast<int>(blockDim.x);
  int lane = static_cast<int>(threadIdx.x);
  int rank = cluster_rank();
  int blocks;
  std::int64_t row;

  __device__ ClusterTeam(int, int blocks_per_row, int first_block)
      : blocks(blocks_per_row), row(cluster_index() - first_block / blocks_per_row) {}
  __device__ void start() const { exchange().announce(); }
  template <class Part, class Combine>
  __device__ Part reduce_part(const Part (&values)[1], int round, Combine combine) const {
    return reduce_block<kMaxWarps>(values, round, combine);
  }
  // From every block of the cluster to every other, in rounds 0 to kRounds - 1 of their own: what
  // is sent in one can be collected while others are under way.
  __device__ void send(int round, Value part) const {
    if (lane >= kWarpLanes) return;
    const Exchange parts = exchange();
    if (round == 0) parts.wait_for_peers();
    parts.send(round, rank, part);
  }
  __device__ const Value* collect(int round) const { return exchange().collect(round); }
  __device__ bool any(bool mine) const { return mine; }
  __device__ void sync() const { __syncthreads(); }
  __device__ int first_thread() const { return 0; }

 private:
  using Exchange = ClusterExchange<Value, kRounds>;
  __device__ Exchange exchange() const {
    __shared__ typename Exchange::Shared shared;
    return {shared, blocks, blocks};
  }
};

}  // namespace membound::cuda
