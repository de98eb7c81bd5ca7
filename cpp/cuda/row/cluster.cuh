// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clusters and launch overlap in the words of PTX. Before 9.0 a cluster is one block and launches
// do not overlap, so the same kernels compile to plain barriers.
#include <cstdint>

#include "cuda/launch/mbarrier.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Whether a kernel of this thread group can be launched on the architecture that is compiled: the
// bodies of others are left out, half the code of older architectures.
template <class ThreadGroup>
__device__ constexpr bool runs_here() {
  return !ThreadGroup::kClusters || MEMBOUND_HAS_CLUSTERS;
}

// Lets the next kernel of the stream start its launch.
__device__ inline void pdl_launch_dependents() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits for the kernel before. Every block executes it, else completion would not carry along a
// chain.
__device__ inline void pdl_wait() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A kernel lets the next one start as soon as it has itself: its launch is hidden. Where threads
// are few it waits for the one before first. A chain of such kernels piled up on the
// multiprocessors otherwise, each start in the way of what ran there (H200, bfloat16, us: LayerNorm
// 128 x 4096 2.90 and 2.27, 300 x 2048 2.93 and 2.35, RMSNorm 64 x 1024 1.65 and 1.49); more
// threads lose by that (RMSNorm 300 x 8192 4.36 and 4.56, 2048 x 1024 3.39 and 3.72), and so do
// gated activations, which pdl_launch_dependents() first (silu_and_mul 1 x 4096 1.14 and 1.35). The
// product may wrap: a grid so large has time for either.
inline constexpr unsigned kFewThreads = 132 * 512;  // of the grid
__device__ inline bool has_few_threads() { return gridDim.x * blockDim.x < kFewThreads; }
// At the start of such a kernel, and before what it reads and writes: every thread that does.
__device__ inline void pdl_launch_unless_few() {
  if (!has_few_threads()) pdl_launch_dependents();
}
__device__ inline void pdl_launch_if_few() {
  if (has_few_threads()) pdl_launch_dependents();
}
__device__ inline void pdl_wait_then_launch() {
  pdl_wait();
  pdl_launch_if_few();
}
__device__ inline void pdl_wait_and_launch() {
  pdl_launch_unless_few();
  pdl_wait_then_launch();
}

__device__ inline int cluster_rank() {
#if MEMBOUND_HAS_CLUSTERS
  std::uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return 0;
#endif
}

// The cluster's place in the grid: which row it works on, without a division.
__device__ inline std::int64_t cluster_index() {
#if MEMBOUND_HAS_CLUSTERS
  std::uint32_t index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
#else
  return blockIdx.x;
#endif
}

// One value per group of a row, from every block of a cluster to every block, in kRounds rounds.
// Each round has a barrier in shared memory that counts the bytes that have arrived. No
// cluster-scope release or acquire: they flush and invalidate the L1 cache of the whole SM (H200,
// 2048 x 65536: 153 us with them, 133 without).
inline constexpr int kMaxGroups = 16;
template <class Value, int kRounds>
struct ClusterExchange {
  struct Shared {
    alignas(16) Value totals[kRounds][kMaxGroups];
    alignas(8) std::uint64_t arrived[kRounds];
  };

  Shared& shared;
  int blocks;  // of the cluster
  int groups;  // of the row: a multiple of blocks

  // First of all: others may write here once they know that this block runs. The slots cleared here
  // are those that nobody writes.
  __device__ void cluster_arrive() const {
    prepare();
    arrive();
  }
  // The two steps of it, for a block with several of these: prepare each, then arrive once.
  __device__ void prepare() const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= groups && thread < kMaxGroups) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) shared.totals[round][thread] = Value(0);
    }
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1 || thread != 0) return;
    const int bytes = groups * static_cast<int>(sizeof(Value));
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      init_mbarrier(&shared.arrived[round]);
      expect_bytes(&shared.arrived[round], bytes);
    }
    fence_mbarrier_init();
#endif
  }
  __device__ void arrive() const {
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1) return;
    __syncwarp();  // aligned: lanes that loads before have parted must arrive together
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // By the sending warp alone, before its first send.
  __device__ void cluster_wait() const {
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1) return;
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }

  // By one warp: lane i sends to block i.
  __device__ void send(int round, int group, Value value) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (blocks == 1) {
      if (lane == 0) shared.totals[round][group] = value;
      return;
    }
#if MEMBOUND_HAS_CLUSTERS
    if (lane >= blocks) return;
    const std::uint32_t to = remote(shared_address(&shared.totals[round][group]), lane);
    const std::uint32_t barrier = remote(shared_address(&shared.arrived[round]), lane);
    store_async(to, value, barrier);
#endif
  }

  // By one thread after wait(round), where the round comes again: its bytes are expected anew. They
  // can be on their way already; the barrier counts them all the same. The sums of the time before
  // were read before this block sent what its peers wait for first.
  __device__ void expect(int round) const {
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1) return;
    expect_bytes(&shared.arrived[round], groups * static_cast<int>(sizeof(Value)));
#endif
  }

  // By every thread, after a block barrier that follows announce(). A block that has received
  // everything may exit: nobody writes into its shared memory any more. parity: of the times that
  // the round was waited for before.
  __device__ void wait(int round, int parity = 0) const {
    if (blocks == 1) {
      __syncthreads();
      return;
    }
#if MEMBOUND_HAS_CLUSTERS
    wait_mbarrier(&shared.arrived[round], parity);
#endif
  }

  // Of all the groups that a row can have; those that this row lacks are zero.
  __device__ const Value* collect(int round, int parity = 0) const {
    wait(round, parity);
    return shared.totals[round];
  }

 private:
#if MEMBOUND_HAS_CLUSTERS
  static __device__ std::uint32_t remote(std::uint32_t own, int rank) {
    std::uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    return there;
  }
  static __device__ void store_async(std::uint32_t to, float value, std::uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(__float_as_uint(value)), "r"(barrier)
        : "memory");
  }
  static __device__ void store_async(std::uint32_t to, double value, std::uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to),
        "l"(__double_as_longlong(value)), "r"(barrier)
        : "memory");
  }
  template <class Part>
  static __device__ void store_async(std::uint32_t to, Pair<Part> pair, std::uint32_t barrier) {
    store_async(to, pair.a, barrier);
    store_async(to + static_cast<std::uint32_t>(sizeof(Part)), pair.b, barrier);
  }
#endif
};

}  // namespace membound::cuda
