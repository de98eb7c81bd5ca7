// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What both rms_norm kernels share: parameters and the arithmetic of one chunk.
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
  std::int64_t out_row_stride;  // else the layouts below say it
  std::int64_t rstd_row_stride;
  int chunks;              // of a row
  int lanes;               // of a row, where several share a warp
  int blocks_per_row;      // the cluster
  int groups;              // of a row, summed one by one
  int segments_per_group;  // where the row is read twice
  bool one_stride;
  bool overlap_launch;
  bool round_before_weight;
  bool weight_is_float;  // and x is not
  bool plain;            // a weight of x's dtype, no offset, one rounding
  DType weight_dtype;
  std::int64_t cols;
  Accumulate inverse_cols;
  Accumulate eps;
  Accumulate weight_offset;
  SafeRange<Accumulate> trusted;  // sums of squares outside are redone scaled
  const void* residual;           // null: none
  void* residual_out;
  std::int64_t residual_row_stride;
  std::int64_t residual_out_row_stride;
  int sqrt_eps_exponent;
  double exact_eps;
  std::int64_t weight_stride;
  RowArray x_array, out_array, rstd_array, residual_array, residual_out_array;
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

// One chunk of a row as it was read: x, and the residual that is added to it.
template <class T, bool kAdd>
struct SourceChunk {
  uint4 parts[kAdd ? 2 : 1];

  __device__ Numbers<T> numbers() const {
    Numbers<T> sum = unpack<T>(parts[0]);
    if constexpr (kAdd) {
      const Numbers<T> residual = unpack<T>(parts[1]);
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sum.at[i] += residual.at[i];
    }
    return sum;
  }
};

// Two chains, so that half the latency of the sum hides behind the other.
template <class T>
__device__ inline accumulate_t<T> sum_of_squares(const Numbers<T>& x, accumulate_t<T> scale) {
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
__device__ inline accumulate_t<T> largest_magnitude(const Numbers<T>& x) {
  accumulate_t<T> largest = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    largest = Largest()(largest, x.at[i] < 0 ? -x.at[i] : x.at[i]);
  }
  return largest;
}

// One chunk of the result. weight is what the reader loaded for it. kPlain: without the options,
// whose branches cost a tenth of the instructions.
template <class T, bool kPlain, class Reader>
__device__ inline uint4 normalised(const RmsNormParams<accumulate_t<T>>& p, Numbers<T> x,
                                   const RowScale<accumulate_t<T>>& row, const Reader& reader,
                                   const uint4& weight, int index) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) x.at[i] = x.at[i] * row.scale * row.rstd;
  if (!kPlain && p.round_before_weight) {
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] = round_to<T>(x.at[i]);
  }
  if (kPlain || reader.present()) {
    const Numbers<T> factor = kPlain ? unpack<T>(weight) : reader.numbers(weight, index);
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) x.at[i] *= factor.at[i];
  }
  return pack<T>(x);
}

}  // namespace membound::cuda
