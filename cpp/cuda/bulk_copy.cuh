// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies from global to shared memory that one thread starts for all, from 9.0 on.
#include "cuda/arrivals.cuh"
#include "cuda/l2_priority.cuh"

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
// Before a copy to where this thread wrote.
__device__ inline void wrote_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
#endif

}  // namespace membound::cuda
