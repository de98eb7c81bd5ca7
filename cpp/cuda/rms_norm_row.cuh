// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both rms_norm kernels share: parameters, the arithmetic of one chunk, the reading of
// weights.
#include <cstdint>

#include "core/layout.hpp"
#include "core/safe_scale.hpp"
#include "cuda/convert.cuh"
#include "cuda/reduce.cuh"
#include "cuda/vec.cuh"

namespace membound::cuda {

// Constant memory is cold at every launch, one line after the other: what an aligned row needs
// comes first and close together.
template <class Accumulate>
struct RmsNormParams {
  const void* x;
  const void* weight;  // null: none
  void* out;
  Accumulate* rstd;  // null: not wanted
  std::int64_t rows;
  std::int64_t x_row_stride;    // where every array has one stride between rows,
  std::int64_t out_row_stride;  // else 0 and the layouts below say it
  std::int64_t rstd_row_stride;
  int chunks;              // of a row
  int lanes;               // of a row, where several share a warp
  int blocks_per_row;      // the cluster
  int groups;              // of a row, summed one by one
  int segments_per_group;  // where the row is read twice
  bool overlap_launch;
  bool round_before_weight;
  DType weight_dtype;
  Accumulate inverse_cols;
  Accumulate eps;
  Accumulate weight_offset;
  SafeRange<Accumulate> trusted;  // sums of squares outside are redone scaled
  int sqrt_eps_exponent;
  double exact_eps;
  std::int64_t cols;
  std::int64_t x_col_stride;
  std::int64_t out_col_stride;
  std::int64_t weight_stride;
  RowLayout x_rows;
  RowLayout out_rows;
  RowLayout rstd_rows;
};

// The scaled form of a row: out = x * scale * rstd, with scale 1 for every everyday row.
template <class Accumulate>
struct RowScale {
  Accumulate scale;
  Accumulate rstd;
};

// The instruction that torch's CUDA modules use, within 2 ulp: the rounding modes are theirs bit
// for bit.
__device__ inline float inverse_sqrt(float value) { return rsqrtf(value); }
__device__ inline double inverse_sqrt(double value) { return 1.0 / sqrt(value); }

__device__ inline int exponent_of(float value) { return ilogbf(value); }
__device__ inline int exponent_of(double value) { return ilogb(value); }

__device__ inline float power_of_two(int exponent, float) { return ldexpf(1.0f, exponent); }
__device__ inline double power_of_two(int exponent, double) { return ldexp(1.0, exponent); }

// The power of two for a row whose largest magnitude is known (see core/safe_scale.hpp).
template <class Accumulate>
__device__ inline int row_exponent(const RmsNormParams<Accumulate>& p, Accumulate largest) {
  if (isinf(largest)) return 0;
  const int own = largest > Accumulate(0) ? exponent_of(largest) : p.sqrt_eps_exponent;
  const int reference = own > p.sqrt_eps_exponent ? own : p.sqrt_eps_exponent;
  return safe_exponent(
      reference, sizeof(Accumulate) == 8 ? kSafeExponentLimitDouble : kSafeExponentLimitFloat);
}

template <class Accumulate>
__device__ inline bool is_trusted(const RmsNormParams<Accumulate>& p, Accumulate sum) {
  return sum >= p.trusted.low && sum <= p.trusted.high;  // false for NaN
}

template <class Accumulate>
__device__ inline Accumulate plain_rstd(const RmsNormParams<Accumulate>& p, Accumulate sum) {
  return inverse_sqrt(sum * p.inverse_cols + p.eps);
}

template <class Accumulate>
__device__ inline RowScale<Accumulate> scaled_row(const RmsNormParams<Accumulate>& p,
                                                  Accumulate scaled_sum, int exponent) {
  const Accumulate eps = static_cast<Accumulate>(ldexp(p.exact_eps, 2 * exponent));
  return {power_of_two(exponent, Accumulate()), inverse_sqrt(scaled_sum * p.inverse_cols + eps)};
}

// Two chains, so that half the latency of the sum hides behind the other.
template <class T>
__device__ inline accumulate_t<T> sum_of_squares(const uint4& chunk, accumulate_t<T> scale) {
  const Numbers<T> x = unpack<T>(chunk);
  accumulate_t<T> even = 0;
  accumulate_t<T> odd = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; i += 2) {
    const accumulate_t<T> a = x.at[i] * scale;
    const accumulate_t<T> b = x.at[i + 1] * scale;
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  return even + odd;
}

template <class T>
__device__ inline accumulate_t<T> largest_magnitude(const uint4& chunk) {
  const Numbers<T> x = unpack<T>(chunk);
  accumulate_t<T> largest = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    largest = Largest()(largest, x.at[i] < 0 ? -x.at[i] : x.at[i]);
  }
  return largest;
}

// Raw weights beside one chunk of x: as many bytes as W needs for kPack<T> elements.
template <class T, class W>
struct WeightChunk {
  static constexpr int kParts = static_cast<int>(sizeof(W) / sizeof(T)) > 1 ? 2 : 1;
  uint4 parts[kParts];
};

// W: the dtype of an aligned weight, T itself or float. With Access::kAny any dtype and stride.
template <class T, class W, Access kAccess>
class WeightReader {
  using Accumulate = accumulate_t<T>;

 public:
  __device__ explicit WeightReader(const RmsNormParams<Accumulate>& p) : p_(p) {}
  __device__ bool present() const { return p_.weight != nullptr; }

  // Issues the loads only: numbers() waits for them.
  __device__ WeightChunk<T, W> load(int index) const {
    WeightChunk<T, W> chunk{};
    if constexpr (kAccess == Access::kAligned) {
      if (present() && index < p_.chunks) {
        const uint4* at = static_cast<const uint4*>(p_.weight) + index * chunk.kParts;
#pragma unroll
        for (int part = 0; part < chunk.kParts; ++part) chunk.parts[part] = at[part];
      }
    }
    return chunk;
  }

  __device__ Numbers<T> numbers(const WeightChunk<T, W>& chunk, int index) const {
    Numbers<T> weight;
    if constexpr (kAccess == Access::kAligned) {
#pragma unroll
      for (int part = 0; part < chunk.kParts; ++part) {
        const Numbers<W> some = unpack<W>(chunk.parts[part]);
#pragma unroll
        for (int i = 0; i < kPack<W>; ++i) {
          weight.at[part * kPack<W> + i] = static_cast<Accumulate>(some.at[i]);
        }
      }
    } else {
      weight = elements(index);
    }
    if (p_.weight_offset != Accumulate(0)) {
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) weight.at[i] += p_.weight_offset;
    }
    return weight;
  }

 private:
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
    Numbers<T> weight;
    const std::int64_t first = static_cast<std::int64_t>(index) * kPack<T>;
    const V* at = static_cast<const V*>(p_.weight) + first * p_.weight_stride;
    const bool aligned = reinterpret_cast<std::uintptr_t>(at) % kChunkBytes == 0;
    if (sizeof(V) == sizeof(T) && p_.weight_stride == 1 && aligned && first + kPack<T> <= p_.cols) {
      const Numbers<V> some = unpack<V>(__ldg(reinterpret_cast<const uint4*>(at)));
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i)
        weight.at[i] = static_cast<Accumulate>(some.at[i % kPack<V>]);
      return weight;
    }
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      weight.at[i] = first + i < p_.cols
                         ? static_cast<Accumulate>(to_number(at[i * p_.weight_stride]))
                         : Accumulate(0);
    }
    return weight;
  }

  const RmsNormParams<Accumulate>& p_;
};

// One chunk of the result. weight is read only where there is one.
template <class T, class Reader, class Weights>
__device__ inline uint4 normalised(const RmsNormParams<accumulate_t<T>>& p, const uint4& chunk,
                                   const RowScale<accumulate_t<T>>& row, const Reader& reader,
                                   const Weights& weights, int index) {
  Numbers<T> x = unpack<T>(chunk);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = x.at[i] * row.scale * row.rstd;
  if (p.round_before_weight) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] = round_to<T>(x.at[i]);
  }
  if (reader.present()) {
    const Numbers<T> weight = reader.numbers(weights, index);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] *= weight.at[i];
  }
  return pack<T>(x);
}

}  // namespace membound::cuda
