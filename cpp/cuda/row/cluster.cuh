// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Thread block clusters and programmatic dependent launch (PDL). Before 9.0 a cluster is one block
// and launches do not overlap, so the same kernels compile to plain barriers.
#include <cstdint>

#include "cuda/launch/mbarrier.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

// Whether kernels of this thread group can be launched on the architecture being compiled. The
// bodies of the others are left out, which halves the code for older architectures.
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
// Waits for the previous kernel. Every block executes it, or completion would not propagate along a
// chain of kernels.
__device__ inline void pdl_wait() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A kernel lets the next one start as soon as it has started itself, which hides the launch. A grid
// of few threads first waits for its predecessor: chains of such kernels would pile up on the SMs
// and delay each other (H200, LayerNorm of bfloat16 128 x 4096: 2.90 -> 2.27 us). Larger grids lose
// by waiting first, and so do gated activations, which always call pdl_launch_dependents() first.
// The product below may wrap: a grid that large has time for either.
inline constexpr unsigned kFewThreads = 132 * 512;  // threads of the grid
__device__ inline bool has_few_threads() { return gridDim.x * blockDim.x < kFewThreads; }
// Such a kernel calls pdl_launch_unless_few() at its start and pdl_wait_then_launch() before it
// reads or writes, in every thread that does. pdl_wait_and_launch() does both.
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

// The index of the cluster in the grid: gives the row of a cluster without a division.
__device__ inline std::int64_t cluster_index() {
#if MEMBOUND_HAS_CLUSTERS
  std::uint32_t index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
#else
  return blockIdx.x;
#endif
}

// Sends one value per group of the row from every block of a cluster to every block, in kRounds
// rounds. Each round has an mbarrier that counts the bytes that have arrived. There is no
// cluster-scope release or acquire, because those flush and invalidate the L1 cache of the whole SM
// (H200, 2048 x 65536: 153 us with them, 133 without).
inline constexpr int kMaxGroups = 16;
template <class Value, int kRounds>
struct ClusterExchange {
  struct Shared {
    alignas(16) Value totals[kRounds][kMaxGroups];
    alignas(8) std::uint64_t mbar[kRounds];
  };

  Shared& shared;
  int blocks;  // of the cluster
  int groups;  // of the row: a multiple of blocks

  // Called first: peers may write to this block once they know that it runs. The slots that it
  // clears are those that no peer writes.
  __device__ void cluster_arrive() const {
    prepare();
    arrive();
  }
  // The two steps of cluster_arrive(). A block with several exchanges prepares each, arrives once.
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
      init_mbarrier(&shared.mbar[round]);
      expect_bytes(&shared.mbar[round], bytes);
    }
    fence_mbarrier_init();
#endif
  }
  __device__ void arrive() const {
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1) return;
    __syncwarp();  // .aligned: lanes that diverged before must arrive together
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  // Called by the sending warp alone, before its first send.
  __device__ void cluster_wait() const {
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1) return;
    __syncwarp();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }

  // Called by one warp: lane i sends to block i.
  __device__ void send(int round, int group, Value value) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (blocks == 1) {
      if (lane == 0) shared.totals[round][group] = value;
      return;
    }
#if MEMBOUND_HAS_CLUSTERS
    if (lane >= blocks) return;
    const std::uint32_t to = remote(shared_address(&shared.totals[round][group]), lane);
    const std::uint32_t barrier = remote(shared_address(&shared.mbar[round]), lane);
    store_async(to, value, barrier);
#endif
  }

  // Called by one thread after wait(round), if the round recurs: expects its bytes again, which may
  // be in flight. The old sums were read before a send of this block that peers await first.
  __device__ void expect(int round) const {
#if MEMBOUND_HAS_CLUSTERS
    if (blocks == 1) return;
    expect_bytes(&shared.mbar[round], groups * static_cast<int>(sizeof(Value)));
#endif
  }

  // Called by every thread, after cluster_arrive() and a block barrier. A block that has received
  // all values may exit, as no peer writes to it any more. parity: of earlier waits for the round.
  __device__ void wait(int round, int parity = 0) const {
    if (blocks == 1) {
      __syncthreads();
      return;
    }
#if MEMBOUND_HAS_CLUSTERS
    wait_mbarrier(&shared.mbar[round], parity);
#endif
  }

  // Values of all groups that a row can have; zero for those that this row lacks.
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
