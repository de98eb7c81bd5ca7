// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/sincos.hpp"
#include "cpu/exponential.hpp"
#include "cpu/logarithm.hpp"

// Elementary functions of float64 lanes, within 2^-32 of themselves: rounded to float32 they err by
// 0.51 ulp at most. Small arguments have series of their own, where 1 would be taken away again.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// exp(x + rest) = 2^n * (1 + growth)
template <class V>
struct PartsOfExponential {
  V growth;
  decltype(V{} < V{}) n;
};
template <class A, class V, class Rest>
MEMBOUND_ALWAYS_INLINE PartsOfExponential<V> parts_of_exponential(V x, Rest rest) {
  using E = Exponential<A>;
  typedef decltype(x < x) Bits;
  const V shifted = multiply_add(x, V{} + E::kLog2E, V{} + E::kWhole);
  const V n = shifted - E::kWhole;
  const V high_part = multiply_add(n, V{} - E::kLn2High, x);
  V r = multiply_add(n, V{} - E::kLn2Low, high_part);
  if constexpr (sizeof(Rest) == sizeof(V)) r += rest;
  return {multiply_add(r * r, curve_from<0, E>(r), r),
          bit_copy<Bits>(shifted) - bit_copy<Bits>(V{} + E::kWhole)};
}
// exp(x + rest) within 1 ulp, scaled in two steps so that n may leave the exponent's range.
template <class A, class V, class Rest = NoRest>
MEMBOUND_ALWAYS_INLINE V exp_of(V x, Rest rest = {}) {
  using E = Exponential<A>;
  constexpr A kLowest = sizeof(A) == 4 ? A(-104) : A(-746);
  constexpr A kHighest = sizeof(A) == 4 ? A(89) : A(710);
  const V limited = at_most(at_least(x, V{} + kLowest), V{} + kHighest);
  const auto [growth, n] = parts_of_exponential<A>(limited, rest);
  const auto half = n >> 1;
  const V first = bit_copy<V>((half + E::kBias) << E::kFraction);
  const V second = bit_copy<V>((n - half + E::kBias) << E::kFraction);
  return (growth + 1) * first * second;
}

// A function of float32 by one of float64, half a vector at a time.
template <class Function, class... Floats>
MEMBOUND_ALWAYS_INLINE F32 by_doubles(Function function, Floats... x) {
  typedef float Half __attribute__((vector_size(kVectorBytes / 2)));
  const auto half = [&](auto... part) MEMBOUND_INLINED {
    return __builtin_convertvector(function(__builtin_convertvector(part, F64)...), Half);
  };
  return bit_copy<F32>(
      Pair<Half>{half(bit_copy<Pair<Half>>(x).first...), half(bit_copy<Pair<Half>>(x).second...)});
}

template <class Mask>
MEMBOUND_ALWAYS_INLINE bool is_any(Mask mask) {
  std::uint64_t words[sizeof(Mask) / 8], all = 0;
  __builtin_memcpy(words, &mask, sizeof(Mask));
  for (std::uint64_t word : words) all |= word;
  return all != 0;
}

typedef Logarithm::Bits BitsF64;
MEMBOUND_ALWAYS_INLINE F64 absolute(F64 x) {
  return bit_copy<F64>(bit_copy<BitsF64>(x) & ~bit_copy<BitsF64>(-F64{}));
}
MEMBOUND_ALWAYS_INLINE F64 with_sign_of(F64 sign, F64 magnitude) {
  return bit_copy<F64>(bit_copy<BitsF64>(magnitude) |
                       (bit_copy<BitsF64>(sign) & bit_copy<BitsF64>(-F64{})));
}
MEMBOUND_ALWAYS_INLINE F64 square_root(F64 x) {
  for (int i = 0; i < kVectorBytes / 8; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
}
// x * (1 + first * y * (1 + second * y))
MEMBOUND_ALWAYS_INLINE F64 series(F64 x, F64 y, double first, double second) {
  return x * multiply_add(y * first, multiply_add(y, F64{} + second, F64{} + 1.0), F64{} + 1.0);
}

// exp(x) = power * (1 + even + odd), exp(-x) = inverse * (1 + even - odd) for |x| < 700: even and
// odd are cosh(r) - 1 and sinh(r) for x = n * log(2) + r, interpolated at Chebyshev nodes within
// 2^-35 of exp(r).
struct EvenGrowth {
  static constexpr double kCurve[] = {0x1.fffffffffe066p-2, 0x1.55555565c69d6p-5,
                                      0x1.6c166be2f8a3bp-10, 0x1.a136b7b7b422ap-16};
};
struct OddGrowth {
  static constexpr double kCurve[] = {0x1.5555555a78883p-3, 0x1.1110e0f4af52ep-7,
                                      0x1.a124eac8883e8p-13};
};
struct Growths {
  F64 even, odd, power, inverse;
};
MEMBOUND_ALWAYS_INLINE Growths growths_of(F64 x) {
  using E = Exponential<double>;
  const F64 shifted = multiply_add(x, F64{} + E::kLog2E, F64{} + (E::kWhole + E::kBias));
  const F64 n = shifted - (E::kWhole + E::kBias);
  const F64 r = multiply_add(n, F64{} - 0x1.62e42fefa39efp-1, x), square = r * r;
  const BitsF64 power = bit_copy<BitsF64>(shifted) << E::kFraction;
  return {square * curve_from<0, EvenGrowth>(square),
          multiply_add(r * square, curve_from<0, OddGrowth>(square), r), bit_copy<F64>(power),
          bit_copy<F64>(bit_copy<BitsF64>(F64{} + 1.0) * 2 - power)};
}
MEMBOUND_ALWAYS_INLINE F64 expm1_of(F64 x) {
  const Growths g = growths_of(at_most(at_least(x, F64{} - 40), F64{} + 100.0));
  return x == 0 ? x : multiply_add(g.even + g.odd, g.power, g.power - 1);  // with the sign of 0
}
MEMBOUND_ALWAYS_INLINE F64 cosh_of(F64 x) {
  const Growths g = growths_of(at_most(absolute(x), F64{} + 100.0));
  const F64 even = g.even + 1;
  return 0.5 * multiply_add(even + g.odd, g.power, (even - g.odd) * g.inverse);
}
MEMBOUND_ALWAYS_INLINE F64 sinh_of(F64 x) {
  const Growths g = growths_of(at_most(absolute(x), F64{} + 100.0));
  const F64 even = (g.even + 1) * (g.power - g.inverse);
  return with_sign_of(x, 0.5 * multiply_add(g.odd, g.power + g.inverse, even));
}

struct ShortLogarithm {
  // As Logarithm::kCurve, within 2^-43 of the logarithm.
  static constexpr double kCurve[] = {0x1.5555555564e96p-1, 0x1.999998cafbf2ap-2,
                                      0x1.249323e4d7fc7p-2, 0x1.c67ada017cf97p-3,
                                      0x1.8c8c11e54d389p-3};
};
// Of normal positive numbers; a NaN stays a NaN.
MEMBOUND_ALWAYS_INLINE F64 short_log_of(F64 x) {
  const auto [n, f] = parts_of_logarithm(x);
  const F64 s = f / (2 + f), square = s * s;
  const F64 curve = multiply_add(square, curve_from<0, ShortLogarithm>(square), F64{} + 2.0);
  const F64 log = multiply_add(n, F64{} + 0x1.62e42fefa39efp-1, s * curve);
  return x == x ? log : x;
}
// Of x > -1; the next term of the series is x^4 / 5.
MEMBOUND_ALWAYS_INLINE F64 log1p_of(F64 x) {
  const F64 small =
      x * multiply_add(x, multiply_add(x, series(F64{} + 1 / 3.0, x, -3 / 4.0, 0), F64{} - 1 / 2.0),
                       F64{} + 1.0);
  return absolute(x) < 0x1p-8 ? small : short_log_of(1 + x);
}
MEMBOUND_ALWAYS_INLINE F64 asinh_of(F64 x) {
  const F64 size = absolute(x);
  const F64 large =
      with_sign_of(x, short_log_of(size + square_root(multiply_add(size, size, F64{} + 1.0))));
  return size < 0x1p-6 ? series(x, x * x, -1 / 6.0, -9 / 20.0) : large;
}
MEMBOUND_ALWAYS_INLINE F64 acosh_of(F64 x) {
  return short_log_of(x + square_root(multiply_add(x, x, F64{} - 1.0)));
}
MEMBOUND_ALWAYS_INLINE F64 atanh_of(F64 x) {
  return absolute(x) < 0x1p-6 ? series(x, x * x, 1 / 3.0, 3 / 5.0)
                              : short_log_of((1 + x) / (1 - x)) * 0.5;
}

constexpr double kRightAngle = 0x1.921fb54442d18p0;

struct Arctangent {
  // (atan(t) / t - 1) / t^2 in t^2 for |t| <= tan(pi / 8), interpolated at Chebyshev nodes: atan(t)
  // within 2^-38 of itself.
  static constexpr double kCurve[] = {
      -0x1.55555555020abp-2, 0x1.9999982560ae5p-3, -0x1.2491c07b53e39p-3, 0x1.c6f683c6210d8p-4,
      -0x1.71d3963a41f81p-4, 0x1.24425b8f48ccap-4, -0x1.4b348f7c05e77p-5};
  static constexpr double kSmall = 0x1.a827999fcef32p-2, kLarge = 0x1.3504f333f9de6p1;
};
// atan(|x|) = base + atan(t), t = |x|, (|x| - 1) / (|x| + 1) or -1 / |x|.
MEMBOUND_ALWAYS_INLINE F64 atan_of(F64 x) {
  const F64 size = absolute(x), zero = {};
  const auto small = size<Arctangent::kSmall, large = size> Arctangent::kLarge;
  const F64 t = (small   ? size
                 : large ? zero - 1.0
                         : size - 1) /
                (small   ? zero + 1.0
                 : large ? size
                         : size + 1);
  const F64 base = small ? zero : large ? zero + kRightAngle : zero + 0.5 * kRightAngle;
  const F64 square = t * t;
  const F64 rest = t * multiply_add(square, curve_from<0, Arctangent>(square), zero + 1.0);
  return with_sign_of(x, base + rest);
}

// asin(s) of 0 <= s <= 1 / 2: of |x|, or of the root of (1 - |x|) / 2, for which asin(|x|) is
// pi / 2 - 2 * asin(s).
struct Arcsine {
  F64 value;
  decltype(F64{} < F64{}) is_small;
  // (asin(s) / s - 1) / s^2 in s^2, interpolated at Chebyshev nodes: within 2^-38 of asin(s).
  static constexpr double kCurve[] = {
      0x1.55555554ee47bp-3, 0x1.333334ceb6520p-4, 0x1.6db5cfb6af282p-5, 0x1.f208eb1ddd0fbp-6,
      0x1.6a9e3262c37dbp-6, 0x1.3c5053c2afce1p-6, 0x1.64b97e009bd03p-8, 0x1.e0231588b1e55p-6};
};
MEMBOUND_ALWAYS_INLINE Arcsine arcsine(F64 x) {
  const F64 size = absolute(x), half = (1 - size) * 0.5;
  const auto is_small = size < 0.5;
  const F64 s = is_small ? size : square_root(half), square = is_small ? size * size : half;
  return {multiply_add(s * square, curve_from<0, Arcsine>(square), s), is_small};
}
MEMBOUND_ALWAYS_INLINE F64 asin_of(F64 x) {
  const Arcsine a = arcsine(x);
  return with_sign_of(x, a.is_small ? a.value : kRightAngle - 2 * a.value);
}
MEMBOUND_ALWAYS_INLINE F64 acos_of(F64 x) {
  const Arcsine a = arcsine(x);
  const F64 large = x < 0 ? 2 * (kRightAngle - a.value) : 2 * a.value;
  return a.is_small ? kRightAngle - with_sign_of(x, a.value) : large;
}

// Of numbers that are not 0.
MEMBOUND_ALWAYS_INLINE F64 atan2_of(F64 y, F64 x) {
  const F64 angle = atan_of(y / x), half_turn = with_sign_of(y, F64{} + 2 * kRightAngle);
  return x < 0 ? angle + half_turn : angle;
}
// Of x > 0.
MEMBOUND_ALWAYS_INLINE F64 pow_of(F64 x, F64 y) {
  const Growths g = growths_of(at_most(at_least(y * short_log_of(x), F64{} - 110), F64{} + 100.0));
  return multiply_add(g.even + g.odd, g.power, g.power);
}

struct HalfTurn {
  // (sin(r) / r - 1) / r^2 in r^2 for |r| <= pi / 2, interpolated at Chebyshev nodes: sin(r) within
  // 2^-33 of itself.
  static constexpr double kCurve[] = {-0x1.555555545de10p-3, 0x1.11110fd836a07p-7,
                                      -0x1.a019043a2fae2p-13, 0x1.719648f903ff1p-19,
                                      -0x1.9da9693ee0fc4p-26};
};
// sin(angle + phase * pi) = (-1)^n sin(r) with angle + phase * pi = n * pi + r.
MEMBOUND_ALWAYS_INLINE F64 sine_of(F64 angle, double phase) {
  constexpr double kWhole = 0x1.8p52;  // adding it rounds to an integer
  constexpr double kInversePi = 0x1.45f306dc9c883p-2;
  const F64 shifted = phase == 0 ? multiply_add(angle, F64{} + kInversePi, F64{} + kWhole)
                                 : multiply_add(angle, F64{} + kInversePi, F64{} + phase) + kWhole;
  const F64 turns = (shifted - kWhole) - phase;
  const F64 high_part = multiply_add(turns, F64{} - 2 * kRightAngleHighPart, angle);
  const F64 r = multiply_add(turns, F64{} - 2 * kRightAngleLowPart, high_part);
  const F64 square = r * r;
  const F64 sine = r * multiply_add(square, curve_from<0, HalfTurn>(square), F64{} + 1.0);
  return bit_copy<F64>(bit_copy<BitsF64>(sine) ^ (bit_copy<BitsF64>(shifted) << 63));
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
