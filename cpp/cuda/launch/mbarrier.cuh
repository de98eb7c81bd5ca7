// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// mbarriers: barriers in shared memory that count arrivals and transferred bytes, and loads and
// stores by shared-memory address. A phase completes once all expected bytes have arrived, and
// threads that wait for it see those bytes.
#include <cstdint>
#include <type_traits>

namespace membound::cuda {

// 9.0 introduced clusters, mbarriers that count bytes, and bulk copies.
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
// Called by the one thread that expects bytes. Others may wait after fence_mbarrier_init() in this
// thread and a block barrier. times: arrivals per phase.
__device__ inline void init_mbarrier(std::uint64_t* mbar, int times = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(mbar)), "r"(times)
               : "memory");
}
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and expects bytes in this phase. Threads that wait for it also see what this thread
// wrote to shared memory before.
__device__ inline void expect_bytes(std::uint64_t* mbar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(mbar)),
               "r"(bytes)
               : "memory");
}
// Expects bytes without arriving.
__device__ inline void expect_more_bytes(std::uint64_t* mbar, int bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(mbar)),
      "r"(bytes)
      : "memory");
}
// Arrives once all asynchronous copies that this thread has started are complete.
__device__ inline void arrive_after_copies(std::uint64_t* mbar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(mbar))
               : "memory");
}
// Waits for a phase. parity: of the phase, 0, 1, 0, 1 ...
__device__ inline void wait_mbarrier(std::uint64_t* mbar, int parity) {
  const std::uint32_t barrier = shared_address(mbar);
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
