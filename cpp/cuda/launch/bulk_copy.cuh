// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies from global to shared memory that one thread starts for all, from 9.0 on.
#include "cuda/launch/cache_hint.cuh"
#include "cuda/launch/mbarrier.cuh"

namespace membound::cuda {

#if MEMBOUND_HAS_CLUSTERS
// bytes: a positive multiple of 16, as both places.
__device__ inline void copy_bulk(uint4* to, const void* from, int bytes, std::uint64_t* arrived) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(arrived)), "l"(kEvictLast)
      : "memory");
}
// The other way; wait_for_sent(): shared memory has been read for all that this thread sent.
__device__ inline void send_bulk(void* to, const uint4* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void wait_for_sent() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Before a copy to where this thread wrote, or, by each that did, from there.
__device__ inline void wrote_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

}  // namespace membound::cuda
