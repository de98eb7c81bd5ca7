// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies from global to shared memory that a thread starts and later waits for; it reads what it
// copied itself, so no barrier is needed. Before 8.0 they are plain loads and stores.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/launch/cache_hint.cuh"
#include "cuda/row/reader.cuh"

namespace membound::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MEMBOUND_HAS_ASYNC_COPY 1
#else
#define MEMBOUND_HAS_ASYNC_COPY 0
#endif

// The first `bytes` of 16 bytes, an even number, zeros behind them: now, for the ends of arrays, or
// later.
static __device__ __noinline__ void copy_now(uint4* to, const uint4* from, int bytes) {
  uint4 block{0u, 0u, 0u, 0u};
  load_bytes<2>(block, from, bytes);
  *to = block;
}
// With the priority of with_evict_last() on 9.0. nvcc 13.0 takes a sum of two registers for the
// address into the instruction, which is invalid with a priority (LDGSTS [R5+UR0], desc[UR1]): an
// operation that no address has comes last, with a zero that it does not know. For 10.0 and 12.0 it
// takes in uniform addresses, too: there, and where no GPU was at hand, copies have none.
__device__ inline void copy_async(uint4* to, const uint4* from, int bytes) {
#if MEMBOUND_HAS_ASYNC_COPY
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
#if __CUDA_ARCH__ == 900
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(
                   address | (blockDim.y - 1)),
               "l"(from), "r"(bytes), "l"(kEvictLast)
               : "memory");
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
#endif
#else
  // Not == 16: ptxas 13.0 takes less than nothing for it, too, where code for 7.5 is built for 9.0.
  if (bytes > 15) {
    *to = *from;
  } else {
    copy_now(to, from, bytes);
  }
#endif
}

#if MEMBOUND_HAS_ASYNC_COPY
// 4 bytes.
__device__ inline void copy_number(float* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(
                   static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
#endif

// Closes the group of copies started since the last call.
__device__ inline void commit_copies() {
#if MEMBOUND_HAS_ASYNC_COPY
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but the last kLeft groups have arrived.
template <int kLeft>
__device__ inline void wait_for_copies() {
#if MEMBOUND_HAS_ASYNC_COPY
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

}  // namespace membound::cuda
