// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Unaligned vectors of 2- or 4-byte elements, accessed as 4-byte words. The 16 bytes of a vector
// are in four or five words, which are loaded or stored independently of each other.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/launch/cache_hint.cuh"

namespace membound::cuda {

// Loads the first `bytes` of a block and leaves the rest unchanged. No load depends on another,
// because the thread at the end of an array determines the latency of its launch. kSize: of an
// element; the bytes are whole elements.
template <int kSize>
__device__ inline void load_bytes(uint4& to, const uint4* from, int bytes) {
  const auto* const words = reinterpret_cast<const std::uint32_t*>(from);
  std::uint32_t* const loaded[4] = {&to.x, &to.y, &to.z, &to.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (bytes >= 4 * i + 4) *loaded[i] = words[i];
    if (kSize < 4 && bytes == 4 * i + 2) {
      *loaded[i] = *reinterpret_cast<const std::uint16_t*>(words + i);
    }
  }
}

// Bits from the start of an element's word to the element.
template <int kSize>
__device__ inline int narrow_shift(const void* element) {
  static_assert(kSize == 2 || kSize == 4);
  return kSize == 4 ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(element) % 4) * 8;
}

// The words that hold a vector: four, and the first half of a fifth.
struct NarrowVectors {
  uint4 words;
  std::uint32_t half;
};

// Issues the loads of the first `bytes` of the vector at `from`, at most 16, padded with zeros.
// shift: of `from` in its word, whose first half, the element before, may be loaded along.
template <int kSize>
__device__ inline NarrowVectors load_narrow(const void* from, int shift, int bytes) {
  NarrowVectors raw{{0u, 0u, 0u, 0u}, 0u};
  const char* const start = static_cast<const char*>(from) - shift / 8;
  const int end = bytes > 0 ? bytes + shift / 8 : 0;  // relative to `start`
  load_bytes<kSize>(raw.words, with_evict_last(reinterpret_cast<const uint4*>(start)), end);
  if (kSize < 4 && shift != 0 && end > 16) {
    raw.half = *with_evict_last(reinterpret_cast<const std::uint16_t*>(start + 16));
  }
  return raw;
}
__device__ inline uint4 vector_of(const NarrowVectors& raw, int shift) {
  return {__funnelshift_r(raw.words.x, raw.words.y, shift),
          __funnelshift_r(raw.words.y, raw.words.z, shift),
          __funnelshift_r(raw.words.z, raw.words.w, shift),
          __funnelshift_r(raw.words.w, raw.half, shift)};
}

// Stores the first `bytes` of a vector, at most 16.
template <int kSize>
__device__ inline void store_narrow(void* to, const uint4& vector, int bytes) {
  if (bytes <= 0) return;
  const int shift = narrow_shift<kSize>(to);
  char* const start = static_cast<char*>(to) - shift / 8;
  const int end = (bytes < 16 ? bytes : 16) + shift / 8;
  const std::uint32_t words[5] = {
      __funnelshift_l(0u, vector.x, shift), __funnelshift_l(vector.x, vector.y, shift),
      __funnelshift_l(vector.y, vector.z, shift), __funnelshift_l(vector.z, vector.w, shift),
      __funnelshift_l(vector.w, 0u, shift)};
  if (kSize < 4 && shift != 0) {
    *reinterpret_cast<std::uint16_t*>(start + 2) = static_cast<std::uint16_t>(words[0] >> 16);
  }
#pragma unroll
  for (int i = 0; i < (kSize == 4 ? 4 : 5); ++i) {
    char* const word = start + 4 * i;
    if (i < 4 && end >= 4 * i + 4 && (i > 0 || shift == 0)) {
      *reinterpret_cast<std::uint32_t*>(word) = words[i];
    }
    if (kSize < 4 && end == 4 * i + 2) {
      *reinterpret_cast<std::uint16_t*>(word) = static_cast<std::uint16_t>(words[i]);
    }
  }
}

}  // namespace membound::cuda
