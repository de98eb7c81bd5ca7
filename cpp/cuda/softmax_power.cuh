// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The exponentials that softmax and cross entropy are made of, and how parts of a row meet.
#include "cuda/held_part.cuh"

namespace membound::cuda {

// Powers of e that make up a softmax. Beside 16-bit storage they come from the GPU's own power of
// 2, good to 2^-22 and what rounding takes from exponents; sums are of 2^kShift times as much, so
// that bfloat16's smallest numbers are normal ones in float32.
template <class T>
struct SoftmaxPower {
  using A = accumulate_t<T>;
  static constexpr int kShift = sizeof(T) == 2 ? 8 : 0;
  static constexpr A kLogOfShift = static_cast<A>(kShift * 0.6931471805599453);
  static __device__ A lowest() { return -static_cast<A>(INFINITY); }

  static __device__ A of(A exponent) { return shifted<0>(exponent); }
  // 2^kShift times that.
  static __device__ A large(A exponent) { return shifted<kShift>(exponent); }

  // What powers are taken relative to: the highest logit, but for rows that have none.
  static __device__ A pivot(A top) { return top == lowest() ? A(0) : top; }

 private:
  template <int kBy>
  static __device__ A shifted(A exponent) {
    if constexpr (sizeof(T) == 2) {
      constexpr float kLog2E = 1.4426950409f;
      exponent = kBy == 0 ? product(exponent, kLog2E) : fmaf(exponent, kLog2E, float{kBy});
      float power;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
      return power;
    } else if constexpr (sizeof(T) == 4) {
      return expf(exponent);
    } else {
      return of_double(exponent);
    }
  }
  // Out of line: exp is long in float64.
  static __device__ __noinline__ double of_double(double exponent) { return exp(exponent); }
};

// Of logits; NaN is passed over.
struct Highest {
  template <class Value>
  static __device__ Value zero() {
    return -static_cast<Value>(INFINITY);
  }
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ double operator()(double a, double b) const { return fmax(a, b); }
};

// The highest logit of some columns, and the sum of their powers relative to its pivot.
template <class T>
__device__ __noinline__ Pair<accumulate_t<T>> merged(const Pair<accumulate_t<T>>* parts,
                                                     int count) {
  using A = accumulate_t<T>;
  using Power = SoftmaxPower<T>;
  A top = Power::lowest(), sum = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) top = Highest()(top, parts[i].a);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    sum = fma(parts[i].b, Power::of(parts[i].a - Power::pivot(top)), sum);
  }
  return {top, sum};
}
// By what the powers of a part are multiplied.
template <class T>
__device__ inline accumulate_t<T> part_factor(accumulate_t<T> top,
                                              const Pair<accumulate_t<T>>& row) {
  return SoftmaxPower<T>::of(top - SoftmaxPower<T>::pivot(row.a)) / row.b;
}

// Makes the logits of a chunk their powers; returns their sum.
template <class T>
__device__ inline accumulate_t<T> take_powers(Numbers<T>& logits, accumulate_t<T> top) {
  const accumulate_t<T> base = SoftmaxPower<T>::pivot(top);
#pragma unroll
  for (int j = 0; j < kPack<T>; ++j) logits.at[j] = SoftmaxPower<T>::large(logits.at[j] - base);
  return reduce_array<kPack<T>>(logits.at, Sum());
}
template <class T>
__device__ inline accumulate_t<T> highest(const Numbers<T>& logits) {
  return reduce_array<kPack<T>>(logits.at, Highest());
}

}  // namespace membound::cuda
