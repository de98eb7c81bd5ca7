// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The weight of qk_norm heads: how it is loaded, and its place in shared memory.
#include "cuda/rope/qk_norm_head.cuh"

namespace membound::cuda {

// The raw weight of two vectors of a head; float32 weights of 16-bit heads take twice the vectors.
template <class T>
struct WeightVectors {
  static constexpr int kOfNumbers = kPack<T> / kPack<float>;
  uint4 at[2 * kOfNumbers];

  __device__ static bool is_float(const AffineArray<accumulate_t<T>>& weight) {
    return sizeof(T) == 2 && weight.dtype == DType::kFloat32;
  }
  __device__ static bool is_present(const AffineArray<accumulate_t<T>>& weight,
                                    const HeadLanes& lanes) {
    return weight.data != nullptr && lanes.holds();
  }
  __device__ void load(const AffineArray<accumulate_t<T>>& weight, std::int64_t head,
                       const HeadLanes& lanes) {
    if (!is_present(weight, lanes)) return;
    const std::int64_t first = head * weight.head_stride + lanes.lane * kPack<T>;
    const int apart = lanes.half * kPack<T>;
    if (is_float(weight)) {
      const float* from = static_cast<const float*>(weight.data) + first;
#pragma unroll
      for (int i = 0; i < kOfNumbers; ++i) {
        at[i] = reinterpret_cast<const uint4*>(from)[i];
        at[kOfNumbers + i] = reinterpret_cast<const uint4*>(from + apart)[i];
      }
    } else {
      const T* from = static_cast<const T*>(weight.data) + first;
      at[0] = *reinterpret_cast<const uint4*>(from);
      at[1] = *reinterpret_cast<const uint4*>(from + apart);
    }
  }
  // The weight with the offset added; ones without a weight.
  __device__ HeadPart<T> numbers(const AffineArray<accumulate_t<T>>& weight,
                                 const HeadLanes& lanes) const {
    HeadPart<T> part;
    const bool given = is_present(weight, lanes), floats = is_float(weight);
    const Numbers<T> first = unpack<T>(at[0]), second = unpack<T>(at[1]);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      const int vector = i / kPack<float>, within = i % kPack<float>;
      accumulate_t<T> a = first.at[i], b = second.at[i];
      if (floats) {
        a = unpack<float>(at[vector]).at[within];
        b = unpack<float>(at[kOfNumbers + vector]).at[within];
      }
      part.first.at[i] = given ? a + weight.offset : 1;
      part.second.at[i] = given ? b + weight.offset : 1;
    }
    return part;
  }
};

// The weight in shared memory, reread for each head to save registers.
template <class T>
struct SharedWeight {
  static constexpr int kQuads = 2 * kPack<T> / 4;
  float4 quads[kQuads][kWarpLanes];

  __device__ void store(const HeadPart<T>& part, int lane) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const Numbers<T>& vector = i < kQuads / 2 ? part.first : part.second;
      const float* from = vector.at + 4 * i % kPack<T>;
      quads[i][lane] = {from[0], from[1], from[2], from[3]};
    }
  }
  __device__ HeadPart<T> load(int lane) const {
    HeadPart<T> part;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      Numbers<T>& vector = i < kQuads / 2 ? part.first : part.second;
      float* to = vector.at + 4 * i % kPack<T>;
      const float4 quad = quads[i][lane];
      to[0] = quad.x, to[1] = quad.y, to[2] = quad.z, to[3] = quad.w;
    }
    return part;
  }
};

}  // namespace membound::cuda
