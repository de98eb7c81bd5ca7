// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Vectors of rows that are not 16-byte aligned, accessed as 8-, 4- or 2-byte vectors: the widest
// that the start and the length of the row allow.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/launch/cache_hint.cuh"

namespace membound::cuda {

// Loads the first `bytes` of 16 and leaves the rest unchanged, by independent loads of 4 bytes and
// one of 2. kSize: `bytes` is a multiple of it.
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

// The width of a row's vectors in bytes.
__device__ inline int narrow_width(const void* row, std::int64_t row_bytes) {
  const auto steps = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(row)) |
                     static_cast<unsigned>(row_bytes) | 8u;
  return static_cast<int>(steps & (0u - steps));
}
// Calls body.operator()<kWidth>(). kSize: of an element.
template <int kSize, class Body>
__device__ inline void with_width(int width, Body body) {
  static_assert(kSize == 2 || kSize == 4);
  if constexpr (kSize == 2) {
    if (width == 2) return body.template operator()<2>();
  }
  width == 4 ? body.template operator()<4>() : body.template operator()<8>();
}

// The first `bytes` of the 16 bytes at `from`, padded with zeros; whole vectors of kWidth bytes.
// Vectors of 2 bytes are loaded as the aligned 4-byte words that hold them, at most five, which a
// funnel shift realigns; two bytes before `from` may be loaded along.
template <int kWidth>
__device__ inline uint4 load_narrow(const void* from, int bytes) {
  if constexpr (kWidth == 8) {
    const uint2* const at = with_evict_last(static_cast<const uint2*>(from));
    uint2 low{0u, 0u}, high{0u, 0u};
    if (bytes >= 8) low = at[0];
    if (bytes >= 16) high = at[1];
    return {low.x, low.y, high.x, high.y};
  } else {
    const int before =
        kWidth == 4 ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(from) % 4);
    const char* const start = static_cast<const char*>(from) - before;
    const int end = bytes > 0 ? bytes + before : 0;
    uint4 words{0u, 0u, 0u, 0u};
    std::uint32_t half = 0;
    load_bytes<kWidth>(words, with_evict_last(reinterpret_cast<const uint4*>(start)), end);
    if constexpr (kWidth == 4) return words;
    if (before != 0 && end > 16) {
      half = *with_evict_last(reinterpret_cast<const std::uint16_t*>(start + 16));
    }
    return {__funnelshift_r(words.x, words.y, before * 8),
            __funnelshift_r(words.y, words.z, before * 8),
            __funnelshift_r(words.z, words.w, before * 8),
            __funnelshift_r(words.w, half, before * 8)};
  }
}
// The counterpart. Nothing outside these bytes is written.
template <int kWidth>
__device__ inline void store_narrow(void* to, const uint4& vector, int bytes) {
  if constexpr (kWidth == 8) {
    auto* const at = static_cast<uint2*>(to);
    if (bytes >= 8) at[0] = {vector.x, vector.y};
    if (bytes >= 16) at[1] = {vector.z, vector.w};
    return;
  }
  if (bytes <= 0) return;
  const int before = kWidth == 4 ? 0 : static_cast<int>(reinterpret_cast<std::uintptr_t>(to) % 4);
  const int shift = before * 8, end = (bytes < 16 ? bytes : 16) + before;
  char* const start = static_cast<char*>(to) - before;
  const std::uint32_t words[5] = {
      __funnelshift_l(0u, vector.x, shift), __funnelshift_l(vector.x, vector.y, shift),
      __funnelshift_l(vector.y, vector.z, shift), __funnelshift_l(vector.z, vector.w, shift),
      __funnelshift_l(vector.w, 0u, shift)};
  if (before != 0) {
    *reinterpret_cast<std::uint16_t*>(start + 2) = static_cast<std::uint16_t>(words[0] >> 16);
  }
#pragma unroll
  for (int i = 0; i < (kWidth == 4 ? 4 : 5); ++i) {
    char* const word = start + 4 * i;
    if (i < 4 && end >= 4 * i + 4 && (i > 0 || before == 0)) {
      *reinterpret_cast<std::uint32_t*>(word) = words[i];
    }
    if (kWidth < 4 && end == 4 * i + 2) {
      *reinterpret_cast<std::uint16_t*>(word) = static_cast<std::uint16_t>(words[i]);
    }
  }
}

}  // namespace membound::cuda
