// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Asynchronous copies from global to shared memory (cp.async). A thread waits for its own copies
// and reads only what it copied itself, so no barrier is needed. Before 8.0 the copies are plain
// loads and stores.
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

// Copies the first `bytes`, an even number, of 16 bytes and pads them with zeros. copy_sync() waits
// for the data and serves the ends of arrays; copy_async() does not wait.
static __device__ __noinline__ void copy_sync(uint4* to, const uint4* from, int bytes) {
  uint4 block{0u, 0u, 0u, 0u};
  load_bytes<2>(block, from, bytes);
  *to = block;
}
// On 9.0 with the L2 priority of with_evict_last(). nvcc 13.0 folds a sum of two address registers
// into the instruction, which is invalid with a priority (LDGSTS [R5+UR0], desc[UR1]). The last
// operation on the address is therefore an OR, which no addressing mode has, with a zero that the
// compiler does not know (blockDim.y - 1). For 10.0 and 12.0 nvcc folds uniform addresses, too:
// there, and on architectures that were not tested, copies have no priority.
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
  // Not == 16: in code for 7.5 that is built for 9.0, ptxas 13.0 treats negative values as 16, too.
  if (bytes > 15) {
    *to = *from;
  } else {
    copy_sync(to, from, bytes);
  }
#endif
}

#if MEMBOUND_HAS_ASYNC_COPY
// Copies 4 bytes.
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

// Waits until all but the last kLeft groups have arrived.
template <int kLeft>
__device__ inline void wait_for_copies() {
#if MEMBOUND_HAS_ASYNC_COPY
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

}  // namespace membound::cuda
