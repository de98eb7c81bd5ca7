// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// silu(z) = z / (1 + exp(-z)) and its gradient.
#include "cuda/activation/logistic.cuh"

namespace membound::cuda {

// Out of line, because float64 exp is long.
static __device__ __noinline__ double sigmoid_of_double(double z) {
  const double power = exp(z < 0 ? z : -z);
  return (z < 0 ? power : 1.0) / (1.0 + power);
}

// sigmoid(z) for z < -80, where exp(z) is about to become subnormal in float32.
static __device__ __noinline__ float sigmoid_near_underflow(float z) {
  return static_cast<float>(exp(static_cast<double>(z)));
}

// 1 / (1 + exp(-z)). For 16-bit storage it is 0 below 2^-126.
template <class T>
__device__ inline accumulate_t<T> sigmoid(accumulate_t<T> z) {
  if constexpr (sizeof(T) == 8) {
    return sigmoid_of_double(z);
  } else if constexpr (sizeof(T) == 4) {
    if (z < kUnderflowArgument<float>) [[unlikely]]
      return sigmoid_near_underflow(z);
    return logistic<T>(not_above(z, kHighestArgument<float>), 0.0f).s;
  } else {
    return logistic<T>(z, 0.0f).s;
  }
}

// silu(z) for such z; it stays normal longer than sigmoid(z).
static __device__ __noinline__ float silu_near_underflow(float z) {
  return static_cast<float>(z * exp(static_cast<double>(z)));
}

// z * s with s = sigmoid(z).
template <class T>
__device__ inline accumulate_t<T> silu(accumulate_t<T> z, accumulate_t<T> s) {
  if constexpr (sizeof(T) == 4) {
    if (z < kUnderflowArgument<float>) [[unlikely]]
      return silu_near_underflow(z);
  }
  return product(z, s);
}

// silu'(z) = s * (1 + z * (1 - s)).
template <class A>
__device__ inline A silu_slope(A z, A s) {
  return product(s, fma(z, 1 - s, A(1)));
}

template <class T>
__device__ inline Numbers<T> silu_of(const uint4& z) {
  Numbers<T> numbers = unpack<T>(z);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i)
    numbers.at[i] = silu<T>(numbers.at[i], sigmoid<T>(numbers.at[i]));
  return numbers;
}

template <class T>
__device__ inline void multiply(Numbers<T>& numbers, const Numbers<T>& factors) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) numbers.at[i] = product(numbers.at[i], factors.at[i]);
}

template <class T>
__device__ inline void multiply_by_silu_gradient(Numbers<T>& numbers, const uint4& z) {
  const Numbers<T> gate = unpack<T>(z);
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    const accumulate_t<T> slope = silu_slope(gate.at[i], sigmoid<T>(gate.at[i]));
    numbers.at[i] = product(numbers.at[i], slope);
  }
}

}  // namespace membound::cuda
