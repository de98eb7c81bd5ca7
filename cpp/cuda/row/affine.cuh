// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Affine parameters (weight and bias) as vectors that match those of a row, and the column sums
// that become their gradients.
#include <cstdint>

#include "cuda/row/convert.cuh"
#include "cuda/row/reader.cuh"
#include "membound/dtype.hpp"

namespace membound::cuda {

template <class T, class V>
__device__ __noinline__ Numbers<T> column_elements(const V* from, std::int64_t stride,
                                                   std::int64_t count) {
  Numbers<T> numbers;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    numbers.at[i] =
        i < count ? static_cast<accumulate_t<T>>(to_number(from[i * stride])) : accumulate_t<T>(0);
  }
  return numbers;
}

// A vector of -0: adding it changes no bit of any number.
template <class T>
__device__ inline uint4 negative_zeros() {
  if constexpr (sizeof(T) == 8) return {0u, 0x80000000u, 0u, 0x80000000u};
  constexpr std::uint32_t kWord = sizeof(T) == 2 ? 0x80008000u : 0x80000000u;
  return {kWord, kWord, kWord, kWord};
}

// One parameter per column: a weight or a bias.
template <class Accumulate>
struct AffineArray {
  const void* data;  // null: absent
  std::int64_t stride;
  Accumulate offset;  // added to every parameter
  DType dtype;
  bool is_float;                 // float32, and x is not
  std::int64_t head_stride = 0;  // between heads of a (heads, cols) array
};

// The gradient of an AffineArray: sums over rows.
template <class Accumulate>
struct ColumnSums {
  void* data;  // null: not wanted
  std::int64_t stride;
  DType dtype;
  Accumulate* partials;  // [partial rows][cols]
  std::int64_t head_stride = 0;
};

// Reads affine parameters. kStrided takes any dtype and stride; every other access needs an aligned
// array of unit stride, of x's dtype or, for 16-bit x, float32. kZeroPast: vectors are zero past
// the end of the row, for sums that run over it; otherwise they are unspecified there. kPlain: the
// array is known to be present and of x's dtype.
template <class T, Access kAccess>
class AffineReader {
  using Accumulate = accumulate_t<T>;

 public:
  __device__ AffineReader(const AffineArray<Accumulate>& array, int vectors, std::int64_t cols,
                          std::int64_t head = 0)
      : array_(array), vectors_(vectors), cols_(cols), first_(head * array.head_stride) {}
  __device__ bool present() const { return array_.data != nullptr; }
  __device__ Accumulate offset() const { return array_.offset; }

  // Loads vectors index(0), index(1) ..., the last the largest, of an array of x's dtype; others
  // load in numbers(). Without a branch around them: behind one, the loads waited for x.
  template <bool kZeroPast = false, bool kPlain = false, int kCount, class Index>
  __device__ void load(uint4 (&raw)[kCount], Index index) const {
    if constexpr (kZeroPast || kAccess == Access::kStrided) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) raw[i] = {0u, 0u, 0u, 0u};
    }
    if constexpr (kAccess == Access::kStrided) return;
    const T* data = static_cast<const T*>(array_.data) + first_;
    const bool there = kPlain || (present() && !array_.is_float);
    const int all = kAccess == Access::kAligned ? vectors_ : static_cast<int>(cols_ / kPack<T>);
    const int whole = there ? all : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (index(i) < whole) raw[i] = reinterpret_cast<const uint4*>(data)[index(i)];
    }
    if constexpr (kAccess == Access::kUnaligned) {
      if (!there || index(kCount - 1) < all || all == vectors_) return;
      const std::int64_t first = static_cast<std::int64_t>(all) * kPack<T>;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (index(i) == all)
          load_bytes<int{sizeof(T)}>(raw[i], reinterpret_cast<const uint4*>(data + first),
                                     bytes_left<T>(cols_, first));
      }
    }
  }
  template <bool kZeroPast = false>
  __device__ uint4 load(int index) const {
    uint4 raw[1];
    load<kZeroPast>(raw, [=](int) { return index; });
    return raw[0];
  }

  __device__ Numbers<T> numbers(const uint4& raw, int index) const {
    Numbers<T> read;
    if constexpr (kAccess == Access::kStrided) {
      read = elements(index);
    } else if (sizeof(T) > 2 || !array_.is_float) {
      read = unpack<T>(raw);
    } else if constexpr (sizeof(T) == 2) {
      const Numbers<float> first = unpack<float>(part<float>(2 * index));
      const Numbers<float> second = unpack<float>(part<float>(2 * index + 1));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        read.at[i] = first.at[i];
        read.at[4 + i] = second.at[i];
      }
    }
    if (array_.offset != Accumulate(0)) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) read.at[i] += array_.offset;
    }
    return read;
  }

 private:
  // 16 bytes of an aligned array of V, zeros past its end. Aligned rows have whole vectors only.
  template <class V>
  __device__ uint4 part(int index) const {
    const V* data = static_cast<const V*>(array_.data) + first_;
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<V>;
    if (first + kPack<V> <= cols_) return reinterpret_cast<const uint4*>(data)[index];
    if (kAccess == Access::kAligned || first >= cols_) return {0u, 0u, 0u, 0u};
    return load_elements(data + first, 1, cols_ - first);
  }

  __device__ Numbers<T> elements(int index) const {
    switch (array_.dtype) {
      case DType::kFloat16: return elements_of<Float16>(index);
      case DType::kBFloat16: return elements_of<BFloat16>(index);
      case DType::kFloat32: return elements_of<float>(index);
      default: return elements_of<double>(index);
    }
  }

  template <class V>
  __device__ Numbers<T> elements_of(int index) const {
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    return column_elements<T>(static_cast<const V*>(array_.data) + first_ + first * array_.stride,
                              array_.stride, cols_ - first);
  }

  const AffineArray<Accumulate>& array_;
  int vectors_;
  std::int64_t cols_;
  std::int64_t first_;  // first element of the head
};

}  // namespace membound::cuda
