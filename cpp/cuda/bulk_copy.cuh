// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies from global to shared memory that one thread starts for all, from 9.0 on. A barrier in
// shared memory counts the bytes that have arrived; its phase turns when all have, and whoever
// waits for that sees them.
#include <cstdint>

namespace membound::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MEMBOUND_HAS_BULK_COPY 1
#else
#define MEMBOUND_HAS_BULK_COPY 0
#endif

__device__ inline std::uint32_t shared_address(const void* place) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
}

#if MEMBOUND_HAS_BULK_COPY
// By the thread that starts the copies; others wait behind a barrier of the block.
__device__ inline void start_arrivals(std::uint64_t* arrived) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(arrived)) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Before the copies of a phase. What this thread wrote to shared memory before comes along.
__device__ inline void expect_bytes(std::uint64_t* arrived, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived)),
      "r"(bytes)
      : "memory");
}
// bytes: a positive multiple of 16, as both places.
__device__ inline void copy_bulk(uint4* to, const void* from, int bytes, std::uint64_t* arrived) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(arrived))
      : "memory");
}
// Before a copy to where this thread wrote.
__device__ inline void wrote_before_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// phase: 0, 1, 0, 1 ...
__device__ inline void wait_for_arrivals(std::uint64_t* arrived, int phase) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(arrived)), "r"(phase)
        : "memory");
  }
}
#endif

}  // namespace membound::cuda
