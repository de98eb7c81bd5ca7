// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// 1 / sqrt(mean of squares + eps) and the sums it is made of. Params is the parameter struct of a
// kernel, with the members that set_rstd assigns.
#include <cmath>
#include <cstdint>

#include "core/safe_scale.hpp"
#include "cuda/row/convert.cuh"
#include "cuda/row/reduce.cuh"

namespace membound::cuda {

template <class Params, class Accumulate>
void set_rstd(Params& p, std::int64_t cols, double eps, Accumulate) {
  p.inverse_cols = Accumulate(1) / static_cast<Accumulate>(cols);
  p.eps = static_cast<Accumulate>(eps);
  p.trusted = safe_range(eps, Accumulate());
  p.exact_eps = eps;
  // Lower than any exponent of a float, yet far enough from INT_MIN for arithmetic.
  p.sqrt_eps_exponent = eps > 0.0 ? std::ilogb(std::sqrt(eps)) : -100000;
}

// rsqrtf, within 2 ulp, as in torch's CUDA modules: the rounding modes match theirs bit for bit.
__device__ inline float inverse_sqrt(float value) { return rsqrtf(value); }
__device__ inline double inverse_sqrt(double value) { return 1.0 / sqrt(value); }

__device__ inline int exponent_of(float value) { return ilogbf(value); }
__device__ inline int exponent_of(double value) { return ilogb(value); }

__device__ inline float power_of_two(int exponent, float) { return ldexpf(1.0f, exponent); }
__device__ inline double power_of_two(int exponent, double) { return ldexp(1.0, exponent); }

// The exponent of the scale for a row whose largest magnitude is known (see core/safe_scale.hpp).
template <class Params, class Accumulate>
__device__ inline int row_exponent(const Params& p, Accumulate largest) {
  if (isinf(largest)) return 0;
  const int own = largest > Accumulate(0) ? exponent_of(largest) : p.sqrt_eps_exponent;
  const int reference = own > p.sqrt_eps_exponent ? own : p.sqrt_eps_exponent;
  return safe_exponent(
      reference, sizeof(Accumulate) == 8 ? kSafeExponentLimitDouble : kSafeExponentLimitFloat);
}

template <class Params, class Accumulate>
__device__ inline bool is_trusted(const Params& p, Accumulate sum) {
  return sum >= p.trusted.low && sum <= p.trusted.high;  // false for NaN
}

template <class Params, class Accumulate>
__device__ inline Accumulate plain_rstd(const Params& p, Accumulate sum) {
  return inverse_sqrt(sum * p.inverse_cols + p.eps);
}

template <class Params, class Accumulate>
__device__ inline Accumulate scaled_rstd(const Params& p, Accumulate scaled_sum, int exponent) {
  const Accumulate eps = static_cast<Accumulate>(ldexp(p.exact_eps, 2 * exponent));
  return inverse_sqrt(scaled_sum * p.inverse_cols + eps);
}

// Sums over one vector in two independent chains, which halves the dependent latency.
template <class T, class Add>
__device__ inline accumulate_t<T> sum_vector(const Numbers<T>& x, Add add) {
  accumulate_t<T> even = 0;
  accumulate_t<T> odd = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; i += 2) {
    even = add(x.at[i], even);
    odd = add(x.at[i + 1], odd);
  }
  return even + odd;
}
template <class T>
__device__ inline accumulate_t<T> sum(const Numbers<T>& x) {
  return sum_vector(x, [](accumulate_t<T> a, accumulate_t<T> sum) { return a + sum; });
}
// Sums in the order of a butterfly reduction, whose first step pairs elements half a vector apart.
template <int kCount, class Accumulate>
__device__ inline Accumulate sum_by_halves(const Accumulate (&values)[kCount]) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    Accumulate halves[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) halves[i] = values[i] + values[kCount / 2 + i];
    return sum_by_halves(halves);
  }
}
template <class T>
__device__ inline accumulate_t<T> sum_of_squares(const Numbers<T>& x) {
  return sum_vector(x, [](accumulate_t<T> a, accumulate_t<T> sum) { return fma(a, a, sum); });
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

}  // namespace membound::cuda
