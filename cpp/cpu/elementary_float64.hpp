// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/elementary.hpp"

// Elementary functions of float64: tan within 2.2 ulp, sinh and atan2 2.1, others 1.9, most of them
// 1. What is rounded away from a sum or a product is kept in a second number, for which a product
// must be fused with the sum behind it: processors without that call the scalar functions.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

namespace float64 {

MEMBOUND_ALWAYS_INLINE Two<F64> product(F64 a, F64 b) {
  const F64 high = a * b;
  return {high, multiply_add(a, b, -high)};
}

// --- logarithms ---

// In units of a base whose logarithm of 2 is high + low, and of e scale + scale_low.
MEMBOUND_ALWAYS_INLINE F64 log_to_base(F64 x, double high, double low, double scale,
                                       double scale_low) {
  const auto [n, f] = parts_of_logarithm(x);
  const auto [s, rest] = logarithm_of_mantissa(f);
  const Two<F64> scaled = product(f, F64{} + scale), whole = sum(n * high, scaled.high);
  const F64 small = multiply_add(f, F64{} + scale_low, scaled.low) + whole.low;
  return whole.high + (multiply_add(n, F64{} + low, small) - s * rest * scale);
}
MEMBOUND_ALWAYS_INLINE F64 log2_of(F64 x) {
  return log_to_base(x, 1, 0, 0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56);
}
MEMBOUND_ALWAYS_INLINE F64 log10_of(F64 x) {
  return log_to_base(x, 0x1.34413509f4p-2, 0x1.cff7988f8959bp-41, 0x1.bcb7b1526e50ep-2,
                     0x1.95355baaafad3p-57);
}
// log(1 + x + rest); the sign of 0 stays.
MEMBOUND_ALWAYS_INLINE F64 log1p_of(F64 x, F64 rest = F64{}) {
  const F64 y = 1 + x, lost = x > 1 ? 1 - (y - x) : x - (y - 1);
  return x == 0 ? x : log_of(y, lost + rest);
}
// Of |x| < 2^28.
MEMBOUND_ALWAYS_INLINE F64 asinh_of(F64 x) {
  const F64 size = absolute(x), square = size * size;
  return with_sign(log1p_of(size + square / (1 + square_root(1 + square))), sign_of(x));
}
// Of 1 <= x < 2^28.
MEMBOUND_ALWAYS_INLINE F64 acosh_of(F64 x) {
  const F64 t = x - 1, root = square_root(multiply_add(t, t, 2 * t));
  const Two<F64> z = sum(root, t);
  return log1p_of(z.high, z.low);
}
// Of |x| < 1: half of log1p(q) for q = 2 x / (1 - x), with its remainder.
MEMBOUND_ALWAYS_INLINE F64 atanh_of(F64 x) {
  const F64 size = absolute(x), below = 1 - size, lost = (1 - below) - size;
  const F64 q = 2 * size / below;
  const F64 remainder = multiply_add(-q, below, 2 * size) - q * lost;
  return with_sign(0.5 * log1p_of(q, remainder / below), sign_of(x));
}

// --- exponentials ---

MEMBOUND_ALWAYS_INLINE F64 expm1_of(F64 x) {
  using E = Exponential<double>;
  const F64 limited = at_most(at_least(x, F64{} - 40), F64{} + 700.0);
  const auto [growth, n] = parts_of_exponential<double>(limited, NoRest{});
  const F64 power = bit_copy<F64>((n + E::kBias) << E::kFraction);
  const F64 found = multiply_add(growth, power, power - 1);
  return x > 700 ? exp_of<double>(x) : absolute(x) < 0x1p-54 ? x : found;
}
// Of |x| < 700.
MEMBOUND_ALWAYS_INLINE F64 cosh_of(F64 x) {
  const F64 power = exp_of<double>(absolute(x));
  return multiply_add(power, F64{} + 0.5, 0.5 / power);
}
MEMBOUND_ALWAYS_INLINE F64 sinh_of(F64 x) {
  const F64 less = expm1_of(absolute(x));
  return with_sign(0.5 * (less + less / (less + 1)), sign_of(x));
}
struct LongLogarithm {
  // (2 * atanh(s) / s - 2 - 2 / 3 * s^2) / s^4 in s^2
  static constexpr double kCurve[] = {
      0x1.999999999999ap-2, 0x1.2492492492521p-2, 0x1.c71c71c6eaa8dp-3, 0x1.745d177a8f200p-3,
      0x1.3b1395d4f9e5fp-3, 0x1.1118c74823a2ep-3, 0x1.df7ce9a6bcccbp-4, 0x1.e02d197c00c78p-4};
};
// Of normal x > 0, below 2^-1000 or above 2^1000 where |y * log(x)| > 700. The logarithm has a
// relative error of 2^-65.
MEMBOUND_ALWAYS_INLINE F64 pow_of(F64 x, F64 y) {
  constexpr double kCubic = 0x1.5555555555555p-1, kCubicLow = 0x1.5555555555555p-55;  // two of it
  const auto [n, f] = parts_of_logarithm(x);
  const F64 under = 2 + f, inverse = 1 / under, s = f * inverse;
  const F64 s_low = multiply_add(-s, f - (under - 2), multiply_add(-s, under, f)) * inverse;
  const Two<F64> square = product(s, s);
  const F64 square_low = multiply_add(2 * s, s_low, square.low);
  const Two<F64> curve =
      sum(F64{} + kCubic, square.high * curve_from<0, LongLogarithm>(square.high));
  const Two<F64> cube = product(s, square.high), term = product(cube.high, curve.high);
  const F64 cube_low = multiply_add(s, square_low, multiply_add(s_low, square.high, cube.low));
  const F64 term_low =
      multiply_add(cube.high, curve.low + kCubicLow, multiply_add(cube_low, curve.high, term.low));
  const Two<F64> first = sum(n * Logarithm::kLn2High, 2 * s), log = sum(first.high, term.high);
  const F64 log_low =
      (first.low + log.low) + multiply_add(n, F64{} + Logarithm::kLn2Low, 2 * s_low + term_low);
  const Two<F64> power = product(y, log.high);
  const F64 power_low = multiply_add(y, log_low, power.low);
  return exp_of<double>(power.high, absolute(power.high) < 720 ? power_low : F64{});
}

// --- sines ---

// Of |angle| < 2^20: angle = turns * pi / 2 + r + rest; the lowest bits of `quadrant` are turns.
struct Angle {
  F64 r, rest;
  BitsF64 quadrant;
};
MEMBOUND_ALWAYS_INLINE Angle reduced(F64 angle) {
  constexpr double kWhole = 0x1.8p52, kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kParts[] = {0x1.921fb544p+0, 0x1.0b4611a6p-34, 0x1.3198a2e037073p-69};
  const F64 shifted = multiply_add(angle, F64{} + kTwoOverPi, F64{} + kWhole);
  const F64 turns = shifted - kWhole;
  const F64 first = multiply_add(turns, F64{} - kParts[0], angle);  // exact
  const F64 more = turns * kParts[1], second = first - more;        // `more` is exact
  const F64 lost = (first - second) - more;
  const F64 last = multiply_add(turns, F64{} - kParts[2], lost);
  const F64 r = angle == 0 ? angle : second + last;  // with its sign
  return {r, (second - r) + last, bit_copy<BitsF64>(shifted)};
}
// As sine_rest and cosine_rest of core/sincos.hpp, with fused sums.
struct Sine {
  static constexpr double kCurve[] = {
      -0x1.5555555555555p-3,  0x1.1111111111110p-7,  -0x1.a01a01a019926p-13, 0x1.71de3a545e700p-19,
      -0x1.ae64540f0ba18p-26, 0x1.61217c1864fa1p-33, -0x1.ab161757f0c63p-41};
};
struct Cosine {
  static constexpr double kCurve[] = {
      0x1.5555555555555p-5,  -0x1.6c16c16c16c16p-10, 0x1.a01a01a019d02p-16, -0x1.27e4fb7711e1dp-22,
      0x1.1eed8de9ef73ep-29, -0x1.9394b76d1f265p-37, 0x1.ab76cf6e9b365p-45};
};
MEMBOUND_ALWAYS_INLINE F64 sine_of(const Angle& a) {
  const F64 z = a.r * a.r, curve = curve_from<0, Sine>(z);
  const F64 more = multiply_add(a.r * z, curve, multiply_add(z * -0.5, a.rest, a.rest));
  return a.r == 0 ? a.r : a.r + more;
}
MEMBOUND_ALWAYS_INLINE F64 cosine_of(const Angle& a) {
  const F64 z = a.r * a.r, half = 0.5 * z, most = 1 - half;
  const F64 curve = curve_from<0, Cosine>(z);
  return most + (((1 - most) - half) + multiply_add(z * z, curve, -(a.r * a.rest)));
}
// sin(angle + steps * pi / 2)
MEMBOUND_ALWAYS_INLINE F64 sine_of(F64 angle, int steps) {
  const Angle a = reduced(angle);
  const BitsF64 quadrant = a.quadrant + steps;
  const F64 found = (quadrant & 1) != 0 ? cosine_of(a) : sine_of(a);
  return bit_copy<F64>(bit_copy<BitsF64>(found) ^ ((quadrant >> 1) << 63));
}
MEMBOUND_ALWAYS_INLINE F64 tan_of(F64 angle) {
  const Angle a = reduced(angle);
  const F64 sine = sine_of(a), cosine = cosine_of(a);
  return (a.quadrant & 1) != 0 ? -cosine / sine : sine / cosine;
}

// --- their inverses ---

struct Arctangent {
  // (atan(t) / t - 1) / t^2 in t^2 for |t| <= tan(pi / 8), interpolated at Chebyshev nodes:
  // within 2^-58 of atan(t).
  static constexpr double kSmall = 0x1.a827999fcef32p-2, kLarge = 0x1.3504f333f9de6p1;
  static constexpr double kCurve[] = {
      -0x1.5555555555555p-2, 0x1.9999999999953p-3, -0x1.249249248d7eep-3, 0x1.c71c71c304b68p-4,
      -0x1.745d165df3f95p-4, 0x1.3b1392d9e785cp-4, -0x1.110e880a7a521p-4, 0x1.e19a13b9fc6dfp-5,
      -0x1.ac7a938b69c93p-5, 0x1.74ddd408bb4c1p-5, -0x1.1b33b923aa954p-5, 0x1.0ad36a455cafbp-6};
};
constexpr double kRightAngleLow = 0x1.1a62633145c07p-54;
// atan(a / b) of positive numbers: base + atan(t) with t = a / b, (a - b) / (a + b) or -b / a.
MEMBOUND_ALWAYS_INLINE F64 atan_of_quotient(F64 a, F64 b) {
  const F64 zero = {};
  const auto small = a<b * Arctangent::kSmall, large = a> b * Arctangent::kLarge;
  const F64 over = small ? a : large ? -b : a - b, under = small ? b : large ? a : a + b;
  const F64 t = over / under, square = t * t;
  const F64 steps = small ? zero : large ? zero + 1.0 : zero + 0.5;
  const F64 rest =
      multiply_add(t * square, curve_from<0, Arctangent>(square), steps * kRightAngleLow);
  const Two<F64> most = sum(steps * kRightAngle, t);
  return most.high + (most.low + rest);
}
MEMBOUND_ALWAYS_INLINE F64 atan_of(F64 x) {
  return with_sign(atan_of_quotient(absolute(x), F64{} + 1.0), sign_of(x));
}
// Of numbers that are not 0 and finite.
MEMBOUND_ALWAYS_INLINE F64 atan2_of(F64 y, F64 x) {
  const F64 angle = atan_of_quotient(absolute(y), absolute(x));
  return with_sign(x < 0 ? (2 * kRightAngle - angle) + 2 * kRightAngleLow : angle, sign_of(y));
}

// asin(s) = s + more for 0 <= s <= 1 / 2, or s is the root of (1 - |x|) / 2, with asin(|x|) = pi /
// 2
// - 2 * asin(s), and more holds what the root lost.
struct Arcsine {
  F64 s, more;
  decltype(F64{} < F64{}) is_small;
  // (asin(s) / s - 1) / s^2 in s^2, interpolated at Chebyshev nodes: within 2^-58 of asin(s).
  static constexpr double kCurve[] = {
      0x1.5555555555555p-3,  0x1.3333333333388p-4, 0x1.6db6db6dac1e0p-5, 0x1.f1c71c7a52ba3p-6,
      0x1.6e8ba123e494cp-6,  0x1.1c4efce23019fp-6, 0x1.c990ad3d8fdcap-7, 0x1.7b027ee1dd585p-7,
      0x1.3b49de7121487p-7,  0x1.31622469ce5adp-7, 0x1.8f193743418ffp-9, 0x1.406192d124629p-6,
      -0x1.3b416bb7d9257p-6, 0x1.e529c6fce9bb4p-6};
};
MEMBOUND_ALWAYS_INLINE Arcsine arcsine(F64 x) {
  const F64 size = absolute(x), half = (1 - size) * 0.5, root = square_root(half);
  const auto is_small = size < 0.5;
  const F64 s = is_small ? size : root, square = is_small ? size * size : half;
  const F64 lost = is_small | (half == 0) ? F64{} : multiply_add(-root, root, half) / (2 * root);
  return {s, multiply_add(s * square, curve_from<0, Arcsine>(square), lost), is_small};
}
MEMBOUND_ALWAYS_INLINE F64 asin_of(F64 x) {
  const Arcsine a = arcsine(x);
  const F64 large = (kRightAngle - 2 * a.s) - (2 * a.more - kRightAngleLow);
  return with_sign(a.is_small ? a.s + a.more : large, sign_of(x));
}
MEMBOUND_ALWAYS_INLINE F64 acos_of(F64 x) {
  const Arcsine a = arcsine(x);
  const F64 s = with_sign(a.s, sign_of(x)), more = with_sign(a.more, sign_of(x));
  const F64 of_small = kRightAngle - (s - (kRightAngleLow - more));
  const F64 twice = 2 * (a.s + a.more);
  return a.is_small ? of_small : x < 0 ? 2 * kRightAngle - (twice - 2 * kRightAngleLow) : twice;
}

}  // namespace float64
}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
