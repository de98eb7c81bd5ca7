// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared memory by its own addresses, and barriers there that count the bytes which arrive. The
// phase of one turns when all that were expected have, and whoever waits for that sees them.
#include <cstdint>
#include <type_traits>

namespace membound::cuda {

// What 9.0 brought: clusters, these barriers and bulk copies.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define MEMBOUND_HAS_CLUSTERS 1
#else
#define MEMBOUND_HAS_CLUSTERS 0
#endif

__device__ inline std::uint32_t shared_address(const void* place) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
}

__device__ inline void store_shared(std::uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ inline void store_shared(std::uint32_t to, double value) {
  asm volatile("st.shared.f64 [%0], %1;" ::"r"(to), "d"(value) : "memory");
}
__device__ inline void store_shared(std::uint32_t to, std::uint16_t bits) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(bits) : "memory");
}
__device__ inline void store_shared(std::uint32_t to, std::uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
__device__ inline void store_shared(std::uint32_t to, const uint2& words) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(words.x), "r"(words.y) : "memory");
}
__device__ inline void store_shared(std::uint32_t to, const uint4& words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}
template <class Value>
__device__ inline Value load_shared(std::uint32_t from) {
  Value value;
  if constexpr (std::is_same_v<Value, float>) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
  } else if constexpr (std::is_same_v<Value, double>) {
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(value) : "r"(from) : "memory");
  } else if constexpr (std::is_same_v<Value, std::uint32_t>) {
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(from) : "memory");
  } else if constexpr (std::is_same_v<Value, uint2>) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(value.x), "=r"(value.y)
                 : "r"(from)
                 : "memory");
  } else {
    static_assert(std::is_same_v<Value, uint4>);
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(from)
                 : "memory");
  }
  return value;
}

#if MEMBOUND_HAS_CLUSTERS
// By one thread, which alone expects bytes; others wait behind a barrier of the block that follows
// fence_mbarrier_init(). times: that it arrives in a phase.
__device__ inline void init_mbarrier(std::uint64_t* arrived, int times = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrived)), "r"(times)
               : "memory");
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Of a phase. What this thread wrote to shared memory before is seen with them.
__device__ inline void expect_bytes(std::uint64_t* arrived, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrived)),
      "r"(bytes)
      : "memory");
}
// The same without arriving.
__device__ inline void expect_more_bytes(std::uint64_t* arrived, int bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(arrived)),
      "r"(bytes)
      : "memory");
}
// Once all asynchronous copies that this thread has started are there.
__device__ inline void arrive_after_copies(std::uint64_t* arrived) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(arrived))
               : "memory");
}
// parity of the phase: 0, 1, 0, 1 ...
__device__ inline void wait_mbarrier(std::uint64_t* arrived, int parity) {
  const std::uint32_t barrier = shared_address(arrived);
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
#endif

}  // namespace membound::cuda
