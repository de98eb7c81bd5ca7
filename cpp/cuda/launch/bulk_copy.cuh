// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Bulk copies (cp.async.bulk) between global and shared memory, which one thread issues for the
// whole block. They exist from 9.0 on.
#include "cuda/launch/cache_hint.cuh"
#include "cuda/launch/mbarrier.cuh"

namespace membound::cuda {

#if MEMBOUND_HAS_CLUSTERS
// bytes: a positive multiple of 16. Both addresses are 16-byte aligned.
__device__ inline void copy_bulk(uint4* to, const void* from, int bytes, std::uint64_t* mbar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(mbar)), "l"(kEvictLast)
      : "memory");
}
// Copies from shared to global memory. wait_bulk_reads() returns once the copies of this thread
// have read shared memory, so that it can be reused.
__device__ inline void store_bulk(void* to, const uint4* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void wait_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Proxy fence: needed before a bulk copy to shared memory that this thread wrote, and, in every
// thread that wrote, before a bulk copy from it.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

}  // namespace membound::cuda
