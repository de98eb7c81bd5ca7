// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Which lines leave L2 first: those that are written. What is read stays longer, though it is read
// once: results then go to memory early, and less between the reads (H200, 16 sets of buffers in
// turn: RMSNorm of bfloat16 16384 x 4096 67.4 us to 65.5, with an addition 8192 x 16384 260 to 254,
// float32 263 to 256; with the sum of x and the result behind it 160.6 to 157.5). Results that
// leave first of all lose 1 %, such reads 3 to 5.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace membound::cuda {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define MEMBOUND_HAS_L2_PRIORITY 1
#else
#define MEMBOUND_HAS_L2_PRIORITY 0
#endif

// evict_last for all lines, as createpolicy encodes it: an immediate costs no instruction.
inline constexpr unsigned long long kEvictLast = 0x14f0000000000000;

// For reads through it. Code before 8.0 has no priorities.
template <class U>
__device__ inline const U* with_evict_last(const U* from) {
#if MEMBOUND_HAS_L2_PRIORITY
  return static_cast<const U*>(__nv_associate_access_property(from, kEvictLast));
#else
  return from;
#endif
}
// A vector of an array that is read once.
__device__ inline uint4 read_vector(const void* from) {
  return *with_evict_last(static_cast<const uint4*>(from));
}

}  // namespace membound::cuda
