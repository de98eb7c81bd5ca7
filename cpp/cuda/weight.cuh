// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The weight beside the chunks of a row.
#include <cstdint>

#include "cuda/convert.cuh"
#include "cuda/vec.cuh"
#include "membound/dtype.hpp"

namespace membound::cuda {

template <class T, class V>
__device__ __noinline__ Numbers<T> weight_elements(const V* from, std::int64_t stride,
                                                   std::int64_t count) {
  Numbers<T> weight;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    weight.at[i] =
        i < count ? static_cast<accumulate_t<T>>(to_number(from[i * stride])) : accumulate_t<T>(0);
  }
  return weight;
}

// Params brings weight, weight_dtype, weight_is_float, weight_stride, weight_offset, chunks, cols.
// kAligned and kShifted: an aligned weight of unit stride, of x's dtype or, for 16-bit x, float.
// kAny: any dtype and stride.
template <class T, Access kAccess, class Params>
class WeightReader {
  using Accumulate = accumulate_t<T>;

 public:
  __device__ explicit WeightReader(const Params& p) : p_(p) {}
  __device__ bool present() const { return p_.weight != nullptr; }

  // Issues the load of a weight of x's dtype; others come with numbers(). Past the end of the row
  // it is anything, or zero for sums that run over it.
  template <bool kZeroPast = false>
  __device__ uint4 load(int index) const {
    if constexpr (kAccess == Access::kAny) return {0u, 0u, 0u, 0u};
    uint4 raw;
    if constexpr (kZeroPast) raw = {0u, 0u, 0u, 0u};
    if (present() && index < p_.chunks && !p_.weight_is_float) raw = part<T>(index);
    return raw;
  }

  __device__ Numbers<T> numbers(const uint4& raw, int index) const {
    Numbers<T> weight;
    if constexpr (kAccess == Access::kAny) {
      weight = elements(index);
    } else if (sizeof(T) > 2 || !p_.weight_is_float) {
      weight = unpack<T>(raw);
    } else if constexpr (sizeof(T) == 2) {
      const Numbers<float> first = unpack<float>(part<float>(2 * index));
      const Numbers<float> second = unpack<float>(part<float>(2 * index + 1));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weight.at[i] = first.at[i];
        weight.at[4 + i] = second.at[i];
      }
    }
    if (p_.weight_offset != Accumulate(0)) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) weight.at[i] += p_.weight_offset;
    }
    return weight;
  }

 private:
  // 16 bytes of an aligned weight of V, zeros past its end. Aligned rows have whole chunks.
  template <class V>
  __device__ uint4 part(int index) const {
    const V* weight = static_cast<const V*>(p_.weight);
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<V>;
    if (first + kPack<V> <= p_.cols) return reinterpret_cast<const uint4*>(weight)[index];
    if (kAccess == Access::kAligned || first >= p_.cols) return {0u, 0u, 0u, 0u};
    return load_elements(weight + first, 1, p_.cols - first);
  }

  __device__ Numbers<T> elements(int index) const {
    switch (p_.weight_dtype) {
      case DType::kFloat16: return elements_of<Float16>(index);
      case DType::kBFloat16: return elements_of<BFloat16>(index);
      case DType::kFloat32: return elements_of<float>(index);
      default: return elements_of<double>(index);
    }
  }

  template <class V>
  __device__ Numbers<T> elements_of(int index) const {
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    return weight_elements<T>(static_cast<const V*>(p_.weight) + first * p_.weight_stride,
                              p_.weight_stride, p_.cols - first);
  }

  const Params& p_;
};

}  // namespace membound::cuda
