// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Clusters and launch overlap in the words of PTX. Before 9.0 a cluster is one block and launches
// do not overlap, so the same kernels compile to plain barriers.
#include <cstdint>

namespace membound::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MEMBOUND_HAS_CLUSTERS 1
#else
#define MEMBOUND_HAS_CLUSTERS 0
#endif

// Lets the next kernel of the stream start its launch, then waits for the one before. Every block
// executes both, else completion would not carry along a chain.
__device__ inline void begin_overlapped() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
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

// Says that this block runs, so that others may write into its shared memory; pairs with
// cluster_wait. Nothing written before is published.
__device__ inline void cluster_announce() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ inline void cluster_wait() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// All blocks of the cluster meet, and what they wrote into each other's shared memory is visible.
__device__ inline void cluster_sync() {
#if MEMBOUND_HAS_CLUSTERS
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  cluster_wait();
#else
  __syncthreads();
#endif
}

// Stores into the same shared variable of block `rank` of the cluster.
template <class Value>
__device__ inline void cluster_store(Value* local, int rank, Value value) {
#if MEMBOUND_HAS_CLUSTERS
  const auto own = static_cast<std::uint32_t>(__cvta_generic_to_shared(local));
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(own), "r"(rank));
  if constexpr (sizeof(Value) == 4) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
  } else {
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(remote), "d"(value) : "memory");
  }
#else
  *local = value;
#endif
}

// 16 bytes from global to shared memory without a register in between; before 8.0 a plain copy.
__device__ inline void copy_chunk_async(uint4* shared, const uint4* global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
  *shared = *global;
#endif
}

__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

}  // namespace membound::cuda
