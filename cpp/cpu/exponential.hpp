// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

// exp(-z) of every lane, scaled by a power of two, and the odds 1 + exp(-z) of the logistic
// function.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class A>
struct Exponential;

// n * kLn2High is exact for every n that occurs, with or without FMA.
template <>
struct Exponential<float> {
  static constexpr float kLog2E = 0x1.715476p0f;
  static constexpr float kLn2High = 0x1.62e4p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  // silu(kLowest) is less than half the smallest subnormal, and silu(kHighest) rounds to kHighest.
  static constexpr float kLowest = -110, kHighest = 40;
  static constexpr float kSubnormalEdge =
      -80;  // below, silu may be subnormal: it stays 2^96 times too large
  static constexpr float kSubnormalScale = 0x1p-96f;
  // 2^kShift * exp(-z) is normal between those limits; so is 2^-kShift * exp(-z) up to -kLowest.
  static constexpr int kShift = -32;
  static constexpr float kScale = 0x1p-32f;
  static constexpr int kFraction = 23, kBias = 127;
  static constexpr float kWhole = 0x1.8p23f;  // adding it rounds to an integer
  // (exp(r) - 1 - r) / r^2 for |r| <= ln(2) / 2, interpolated at Chebyshev nodes: within 0.1 ulp of
  // exp(r).
  static constexpr float kCurve[] = {0x1p-1f, 0x1.5554dep-3f, 0x1.55551ap-5f, 0x1.120b62p-7f,
                                     0x1.6d10fcp-10f};
};
template <>
struct Exponential<double> {
  static constexpr double kLog2E = 0x1.71547652b82fep0;
  static constexpr double kLn2High = 0x1.62e42fefap-1, kLn2Low = 0x1.cf79abc9e3b3ap-40;
  static constexpr double kLowest = -760, kHighest = 80;
  static constexpr double kSubnormalEdge = -700;
  static constexpr double kSubnormalScale = 0x1p-600;
  static constexpr int kShift = -128;
  static constexpr double kScale = 0x1p-128;
  static constexpr int kFraction = 52, kBias = 1023;
  static constexpr double kWhole = 0x1.8p52;
  static constexpr double kCurve[] = {0x1p-1,
                                      0x1.5555555555556p-3,
                                      0x1.5555555553d68p-5,
                                      0x1.11111111109b5p-7,
                                      0x1.6c16c17889ef1p-10,
                                      0x1.a01a01a7c2efep-13,
                                      0x1.a019b9149a41cp-16,
                                      0x1.71de0db2f6b19p-19,
                                      0x1.28917c89a43a7p-22,
                                      0x1.af389ecfc4b9cp-26};
};

template <int k, class E, class V>
MEMBOUND_ALWAYS_INLINE V curve_from(V r) {
  const V term = V{} + E::kCurve[k];
  if constexpr (k + 1 < sizeof(E::kCurve) / sizeof(E::kCurve[0])) {
    return multiply_add(curve_from<k + 1, E>(r), r, term);
  } else {
    return term;
  }
}

// Stands for a rounding error that is not tracked.
struct NoRest {};

// 2^kShift * exp(-(z + rest)) = power + growth * power.
template <class V>
struct Power {
  V growth, power;
};
template <class A, int kShift, class V, class Rest>
MEMBOUND_ALWAYS_INLINE Power<V> power_of_minus(V z, Rest rest) {
  using E = Exponential<A>;
  typedef decltype(z < z) Bits;
  // -z = n * ln 2 + r. Adding kShifted leaves n in the lowest bits, from where it moves to the
  // exponent.
  constexpr A kShifted = E::kWhole + (E::kBias + kShift);
  const V shifted = multiply_add(z, V{} - E::kLog2E, V{} + kShifted);
  const V n = shifted - kShifted;
  const V high_part = multiply_add(n, V{} + E::kLn2High, z);
  V r = -multiply_add(n, V{} + E::kLn2Low, high_part);
  if constexpr (sizeof(Rest) == sizeof(V)) r -= rest;
  const V growth = multiply_add(r * r, curve_from<0, E>(r), r);  // exp(r) - 1
  return {growth, bit_copy<V>(bit_copy<Bits>(shifted) << E::kFraction)};
}

// z clamped to [kLowest, kHighest], kScale * exp(-z), and kScale * (1 + exp(-z)).
template <class V>
struct Odds {
  V z, exp_minus, sum;
};
template <class A, class V, class Rest = NoRest>
MEMBOUND_ALWAYS_INLINE Odds<V> odds_of(V unlimited, Rest rest = {}) {
  using E = Exponential<A>;
  const V z = at_most(at_least(unlimited, V{} + E::kLowest), V{} + E::kHighest);
  const auto [growth, power] = power_of_minus<A, E::kShift>(z, rest);
  // In this order hardly anything but the last sum is rounded.
  const V one = V{} + E::kScale;
  return {z, multiply_add(growth, power, power),
          multiply_add(growth, power, at_most(power, one)) + at_least(power, one)};
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
