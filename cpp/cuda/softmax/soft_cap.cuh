// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/activation/logistic.cuh"

namespace membound::cuda {

// cap * tanh(x / cap) and its derivative.
template <class A>
struct SoftCapped {
  A value, slope;
};
// With e = exp(-2 |u|), tanh is (1 - e) / (1 + e) and its slope 4 e / (1 + e)^2. The value takes
// expm1, exact where tanh is small, and the slope takes exp, exact where the slope is small. Out of
// line: few models cap logits, and the code is long.
template <class A>
__device__ __noinline__ SoftCapped<A> soft_capped(A x, A cap) {
  const A u = x / cap, down = -2 * (u < 0 ? -u : u), power = exp(down), inverse = 1 / (1 + power);
  const A value = -expm1(down) * inverse;
  return {cap * (u < 0 ? -value : value), 4 * power * inverse * inverse};
}

// tanh(u) and its slope for results of 16 bits, within 2^-18; near 0, where 1 - e cancels, a Taylor
// series is used.
__device__ inline SoftCapped<float> approximate_tanh(float u) {
  constexpr float kMinusTwoLog2E = -2.8853900818f;
  const float t = fabsf(u), square = product(u, u);
  const float power = power_of_two(product(t, kMinusTwoLog2E)),
              inverse = approximate_inverse(1 + power);
  const float by_exponential = copysignf(product(1 - power, inverse), u);
  const float by_series = fmaf(product(u, square), fmaf(square, 0.1333333333f, -0.3333333333f), u);
  return {t < 0.0625f ? by_series : by_exponential, product(4 * power, product(inverse, inverse))};
}

// Soft cap for results of type T.
template <class T>
__device__ inline SoftCapped<accumulate_t<T>> soft_capped_for(accumulate_t<T> x,
                                                              accumulate_t<T> cap) {
  if constexpr (sizeof(T) > 2) return soft_capped(x, cap);
  const SoftCapped<float> tanh = approximate_tanh(product(x, approximate_inverse(cap)));
  return {product(cap, tanh.value), tanh.slope};
}

}  // namespace membound::cuda
