// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Logistic function, 1 / (1 + exp(-z)), with no more instructions than the storage type's accuracy
// needs.
#include "cuda/row/convert.cuh"

namespace membound::cuda {

// Below this, the caller computes with sqrt(exp(z)), because exp(z) is about to become subnormal.
template <class A>
inline constexpr A kUnderflowArgument = sizeof(A) == 8 ? A(-700) : A(-80);
// Outside of these bounds the logistic function is 0 or 1.
template <class A>
inline constexpr A kLowestArgument = sizeof(A) == 8 ? A(-760) : A(-110);
template <class A>
inline constexpr A kHighestArgument = sizeof(A) == 8 ? A(80) : A(40);

// Clamps that propagate NaN.
template <class A>
__device__ inline A not_below(A value, A lowest) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(A) == 4) {
    float result;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(lowest));
    return result;
  }
#endif
  return value < lowest ? lowest : value;
}
template <class A>
__device__ inline A not_above(A value, A highest) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(A) == 4) {
    float result;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "f"(highest));
    return result;
  }
#endif
  return value > highest ? highest : value;
}

__device__ inline float approximate_inverse(float value) {
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(value));
  return guess;
}
// 1 / sum for a sum in [1, exp(80)], within an ulp; a plain division would add a branch for cases
// that cannot occur.
__device__ inline float inverse_of_sum(float sum) {
  const float guess = approximate_inverse(sum);
  return fmaf(fmaf(-sum, guess, 1.0f), guess, guess);
}
__device__ inline double inverse_of_sum(double sum) { return 1 / sum; }

__device__ inline float power_of_two(float exponent) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
}

// exp(-(z + rest)) for z >= -80, by ex2.approx with the rounding error of its argument compensated.
// exp is as accurate, with a third more instructions.
__device__ inline float power_of_minus(float z, float rest) {
  constexpr float kMinusLog2E = -1.4426950409f, kRest = -1.925963e-8f, kLn2 = 0.6931471806f;
  const float exponent = product(z, kMinusLog2E);
  const float left = fmaf(z, kRest, fmaf(z, kMinusLog2E, -exponent));
  const float power = power_of_two(exponent);
  return fmaf(power, fmaf(left, kLn2, -rest), power);
}
__device__ inline double power_of_minus(double z, double rest) {
  const double power = exp(-z);
  return fma(power, -rest, power);
}

// 1 / (1 + exp(-(z + rest))) and its complement; rest is the rounding error of z.
template <class A>
struct Logistic {
  A s, complement;
};
// 1 / (1 + against).
__device__ inline Logistic<float> logistic_of_exponential(float exponential) {
  const float s = inverse_of_sum(1 + exponential);
  return {s, product(exponential, s)};
}
template <class T>
__device__ inline Logistic<accumulate_t<T>> logistic(accumulate_t<T> z, accumulate_t<T> rest) {
  using A = accumulate_t<T>;
  if constexpr (sizeof(T) == 2) {  // rest and rounding errors are negligible at 2^-17
    constexpr float kMinusLog2E = -1.4426950409f;
    const float exponential = power_of_two(product(not_below(z, -88.0f), kMinusLog2E));
    const float s = approximate_inverse(1.0f + exponential);
    return {s, 1 - s};
  } else if constexpr (sizeof(T) == 4) {
    return logistic_of_exponential(power_of_minus(z, rest));
  } else {
    const A power = exp(z < 0 ? z : -z);
    const A small = fma(power, z < 0 ? rest : -rest, power), inverse = inverse_of_sum(1 + small);
    const A below = product(small, inverse);
    return {z < 0 ? below : inverse, z < 0 ? inverse : below};
  }
}

}  // namespace membound::cuda
