// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Unaligned 16-byte vectors, assembled from two aligned 16-byte blocks by funnel shifts.
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/row/convert.cuh"

namespace membound::cuda {

// Bytes [shift, shift + 16) of the 32 bytes low, high, where shift = 4 * kWords + bits / 8 < 16.
template <int kWords>
__device__ inline uint4 bytes_from(const uint4& low, const uint4& high, int bits) {
  const std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  return {__funnelshift_r(words[kWords], words[kWords + 1], bits),
          __funnelshift_r(words[kWords + 1], words[kWords + 2], bits),
          __funnelshift_r(words[kWords + 2], words[kWords + 3], bits),
          __funnelshift_r(words[kWords + 3], words[kWords + 4], bits)};
}

// The same for threads of a warp with different shifts.
__device__ inline uint4 bytes_from(const uint4& low, const uint4& high, int shift) {
  std::uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) words[i] = shift & 8 ? words[i + 2] : words[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) words[i] = shift & 4 ? words[i + 1] : words[i];
  return bytes_from<0>({words[0], words[1], words[2], words[3]}, {words[4], 0, 0, 0},
                       (shift & 3) * 8);
}

// Calls body with a function (low, high) -> bytes from `shift` on. kUniform: all threads of a warp
// have the same shift, so that one branch replaces eleven selects per vector.
template <bool kUniform, class Body>
__device__ inline void with_shift(int shift, Body body) {
  if constexpr (!kUniform) {
    return body([=](const uint4& a, const uint4& b) { return bytes_from(a, b, shift); });
  }
  const int bits = (shift & 3) * 8;
  switch (shift >> 2) {
    case 0: return body([=](const uint4& a, const uint4& b) { return bytes_from<0>(a, b, bits); });
    case 1: return body([=](const uint4& a, const uint4& b) { return bytes_from<1>(a, b, bits); });
    case 2: return body([=](const uint4& a, const uint4& b) { return bytes_from<2>(a, b, bits); });
    default: return body([=](const uint4& a, const uint4& b) { return bytes_from<3>(a, b, bits); });
  }
}

// The first `bytes` bytes, followed by zeros.
__device__ inline uint4 first_bytes(const uint4& vector, int bytes) {
  std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = bytes - 4 * i;
    if (left < 4) words[i] = left > 0 ? words[i] & ((1u << 8 * left) - 1u) : 0u;
  }
  return {words[0], words[1], words[2], words[3]};
}

// Bytes from the last 16-byte boundary to the start of the row.
__device__ inline int shift_of(const void* row) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(row) % kVectorBytes);
}

}  // namespace membound::cuda
