// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tests whether the arrays of a qk_norm_rope call can be accessed in 16-byte vectors.
#include <cstdint>

#include "cuda/rope/qk_norm_lanes.cuh"
#include "cuda/rope/qk_norm_rope_config.hpp"
#include "cuda/rope/rope_layout.cuh"
#include "ops/qk_norm_rope.hpp"

namespace membound::cuda {

// A weight in the form that kernels take.
template <class T>
AffineArray<accumulate_t<T>> weight_columns(const HeadWeight& weight, double offset) {
  return {weight.data,
          weight.stride,
          static_cast<accumulate_t<T>>(weight.data != nullptr ? offset : 0.0),
          weight.dtype,
          sizeof(T) == 2 && weight.dtype == DType::kFloat32,
          weight.head_stride};
}

// True without a weight, for a weight of x's dtype, and for float32 with 16-bit x.
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
         weight.head_stride % elements == 0 && is_vector_aligned(weight.data);
}

// Alignment common to all heads of a call. fits: tests it for the op's arrays, given the elements
// of a vector as an integral constant.
template <class T, class Fits>
VectorAccess vector_access(Fits fits) {
  constexpr std::integral_constant<int, kPack<T>> kWhole;
  constexpr std::integral_constant<int, kPack<T> / 2> kHalf;
  if (fits(kWhole)) return VectorAccess::kWhole;
  return fits(kHalf) ? VectorAccess::kHalves : VectorAccess::kElements;
}

// float64 has only the generic kernel: training and inference hardly use it.
template <class T>
inline constexpr bool kHasVectorsKernel = sizeof(T) <= 4;

// True if the heads of all arrays rotate as a whole and lanes can hold two vectors of each. The
// output of array `cached` is a cache, which the caller must test itself.
template <class T>
bool rotates_in_vectors(const RopeProblem& p, int cached = -1) {
  bool all = kHasVectorsKernel<T> && p.rotary_dim == p.head_dim &&
             tuning::qk_norm_pairs_vectors(p.head_dim, sizeof(T));
  for (int i = 0; i < p.count && all; ++i) {
    const RopeHeads& array = p.arrays[i];
    all = in_vectors<T>(p, array.x, array.x_strides, array.heads) &&
          (i == cached || in_vectors<T>(p, array.out, array.out_strides, array.heads));
  }
  return all;
}

// True if the heads of a cache are aligned in every slot.
template <class T, int kElements = kPack<T>>
bool cache_in_vectors(const RopeHeads& array) {
  const RopeStrides& strides = array.out_strides;
  const std::int64_t head = array.heads == 1 ? 0 : strides.head;
  return reinterpret_cast<std::uintptr_t>(array.out) % (kElements * sizeof(T)) == 0 &&
         strides.dim == 1 && (strides.batch | strides.seq | head) % kElements == 0;
}

}  // namespace membound::cuda
