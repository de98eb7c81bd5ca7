// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What of a call of qk_norm_rope can be read in vectors of 16 bytes.
#include <cstdint>

#include "cuda/rope/qk_norm_lanes.cuh"
#include "cuda/rope/qk_norm_rope_config.hpp"
#include "cuda/rope/rope_layout.cuh"
#include "ops/qk_norm_rope.hpp"

namespace membound::cuda {

// A weight as kernels take it.
template <class T>
AffineArray<accumulate_t<T>> weight_columns(const HeadWeight& weight, double offset) {
  return {weight.data,
          weight.stride,
          static_cast<accumulate_t<T>>(weight.data != nullptr ? offset : 0.0),
          weight.dtype,
          sizeof(T) == 2 && weight.dtype == DType::kFloat32,
          weight.head_stride};
}

// None, or of x's dtype, or float32 beside 16 bits.
template <class T>
bool is_common_weight(const RopeProblem& p, const HeadWeight& weight) {
  return weight.data == nullptr || weight.dtype == p.dtype ||
         (sizeof(T) == 2 && weight.dtype == DType::kFloat32);
}

template <class T>
bool weight_in_vectors(const RopeProblem& p, const HeadWeight& weight) {
  if (weight.data == nullptr) return true;
  const std::int64_t elements = kVectorBytes / static_cast<std::int64_t>(dtype_size(weight.dtype));
  return is_common_weight<T>(p, weight) && weight.stride == 1 &&
         weight.head_stride % elements == 0 && starts_on_vector(weight.data);
}

// What every head of a call starts on and is made of. fits: a function of (elements of a piece, as
// an integral constant) of what only the op knows.
template <class T, class Fits>
VectorAccess vector_access(Fits fits) {
  constexpr std::integral_constant<int, kPack<T>> kWhole;
  constexpr std::integral_constant<int, kPack<T> / 2> kHalf;
  if (fits(kWhole)) return VectorAccess::kWhole;
  return fits(kHalf) ? VectorAccess::kHalves : VectorAccess::kElements;
}

// float64, which nobody trains or serves with, is not worth kernels of its own.
template <class T>
inline constexpr bool kHasVectorsKernel = sizeof(T) <= 4;

// The heads of all arrays turn as a whole, in vectors of which lanes hold two each. Where the
// output is a cache, that is somebody else's to ask.
template <class T>
bool turns_in_vectors(const RopeProblem& p, int cached = -1) {
  bool all = kHasVectorsKernel<T> && p.rotary_dim == p.head_dim &&
             tuning::qk_norm_pairs_vectors(p.head_dim, sizeof(T));
  for (int i = 0; i < p.count && all; ++i) {
    const RopeHeads& array = p.arrays[i];
    all = in_vectors<T>(p, array.x, array.x_strides, array.heads) &&
          (i == cached || in_vectors<T>(p, array.out, array.out_strides, array.heads));
  }
  return all;
}

// The heads of a cache, of any slot.
template <class T, int kElements = kPack<T>>
bool cache_in_vectors(const RopeHeads& array) {
  const RopeStrides& strides = array.out_strides;
  const std::int64_t head = array.heads == 1 ? 0 : strides.head;
  return reinterpret_cast<std::uintptr_t>(array.out) % (kElements * sizeof(T)) == 0 &&
         strides.dim == 1 && (strides.batch | strides.seq | head) % kElements == 0;
}

}  // namespace membound::cuda
