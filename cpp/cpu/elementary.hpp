// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/sincos.hpp"
#include "cpu/exponential.hpp"
#include "cpu/logarithm.hpp"

// Elementary functions of float32 lanes, in float32 arithmetic within 1.5 ulp. Where an error would
// grow, what is rounded away from a sum or a product is kept in a second number.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// --- for both types ---

#if defined(__FMA__) || defined(__aarch64__)
constexpr bool kFusesProducts = true;
#else
constexpr bool kFusesProducts = false;
#endif

template <class V>
using BitsOf = decltype(V{} < V{});
typedef BitsOf<F64> BitsF64;

template <class V>
MEMBOUND_ALWAYS_INLINE BitsOf<V> sign_of(V x) {
  return bit_copy<BitsOf<V>>(x) & bit_copy<BitsOf<V>>(-V{});
}
template <class V>
MEMBOUND_ALWAYS_INLINE V with_sign(V x, BitsOf<V> sign) {
  return bit_copy<V>(bit_copy<BitsOf<V>>(x) ^ sign);
}
template <class V>
MEMBOUND_ALWAYS_INLINE V absolute(V x) {
  return with_sign(x, sign_of(x));
}
template <class V>
MEMBOUND_ALWAYS_INLINE V square_root(V x) {
  if constexpr (sizeof(F32) == 16 && sizeof(x[0]) == 4) {  // -O1 would take this loop literally
    return V{__builtin_sqrtf(x[0]), __builtin_sqrtf(x[1]), __builtin_sqrtf(x[2]),
             __builtin_sqrtf(x[3])};
  } else {
    for (std::size_t i = 0; i < sizeof(V) / sizeof(x[0]); ++i) {
      x[i] = sizeof(x[0]) == 4 ? __builtin_sqrtf(x[i]) : __builtin_sqrt(x[i]);
    }
    return x;
  }
}

template <class V>
struct Two {
  V high, low;
};
// |a| >= |b|, or a is 0 or a multiple of b's last bit.
template <class V>
MEMBOUND_ALWAYS_INLINE Two<V> sum(V a, V b) {
  const V high = a + b;
  return {high, (a - high) + b};
}

// exp(x + rest) = 2^n * (1 + growth)
template <class V>
struct PartsOfExponential {
  V growth;
  BitsOf<V> n;
};
template <class A, class V, class Rest>
MEMBOUND_ALWAYS_INLINE PartsOfExponential<V> parts_of_exponential(V x, Rest rest) {
  using E = Exponential<A>;
  typedef BitsOf<V> Bits;
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

// --- what is left of rounded operations of float32 ---

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
// a * b - most, hardly rounded where they are close.
MEMBOUND_ALWAYS_INLINE F32 excess_of(F32 a, F32 b, F32 most) {
  if constexpr (kFusesProducts) return multiply_add(a, b, -most);
  // Products of halves of 12 bits are exact.
  const F32 a_high = bit_copy<F32>(bit_copy<I32>(a) & ~0xfff), a_low = a - a_high;
  const F32 b_high = bit_copy<F32>(bit_copy<I32>(b) & ~0xfff), b_low = b - b_high;
  return ((a_high * b_high - most) + a_high * b_low + a_low * b_high) + a_low * b_low;
}
MEMBOUND_ALWAYS_INLINE Two<F32> product(F32 a, F32 b) {
  const F32 high = a * b;
  return {high, excess_of(a, b, high)};
}
// 1 / x within an eighth of it, for 2^-126 <= x < 2^126: enough for a correction.
MEMBOUND_ALWAYS_INLINE F32 rough_inverse(F32 x) {
  return bit_copy<F32>(0x7ef311c3 - bit_copy<I32>(x));
}

// --- logarithms ---

// 2^n * m with 3 / 4 <= m < 3 / 2, a normal positive number. Of 16 intervals of m, `index` is the
// one: m * inverse is exact, and 1 + f with -0.038 < f < 0.063. Around 1 the inverse is 1.
struct Mantissa {
  I32 exponent, index;  // n * 2^23
  F32 n, inverse;
};
constexpr float kInverse[] = {0x1.5p0f,  0x1.4p0f,  0x1.38p0f, 0x1.28p0f, 0x1.2p0f,  0x1.18p0f,
                              0x1.1p0f,  1,         1,         0x1.dp-1f, 0x1.cp-1f, 0x1.ap-1f,
                              0x1.9p-1f, 0x1.8p-1f, 0x1.7p-1f, 0x1.6p-1f};
constexpr double kLogOfInverse[] = {0x1.1675cababa60ep-2,
                                    0x1.c8ff7c79a9a22p-3,
                                    0x1.9525a9cf456b4p-3,
                                    0x1.29552f81ff523p-3,
                                    0x1.e27076e2af2e6p-4,
                                    0x1.6f0d28ae56b4cp-4,
                                    0x1.f0a30c01162a6p-5,
                                    0,
                                    0,
                                    -0x1.9335e5d594989p-4,
                                    -0x1.1178e8227e47cp-3,
                                    -0x1.a93ed3c8ad9e3p-3,
                                    -0x1.f991c6cb3b379p-3,
                                    -0x1.269621134db92p-2,
                                    -0x1.522ae0738a3d8p-2,
                                    -0x1.7fafa3bd8151cp-2};
MEMBOUND_ALWAYS_INLINE Mantissa mantissa_of(F32 x) {
  const I32 shifted = bit_copy<I32>(x) - bit_copy<I32>(F32{} + 0.75f), index = shifted >> 19;
  return {shifted & int(0xff800000), index, __builtin_convertvector(shifted >> 23, F32),
          look_up(kInverse, index)};
}

// A logarithm whose unit is 1 / kScale: a multiple of 2^-15 and the rest, of 2 and of the inverses,
// and (log(1 + f) - f) / f^2, a minimax polynomial within 2^-28 of log(1 + f).
template <class Unit>
struct LogTable {
  float two[2], high[16], low[16];
  static constexpr float kScale = Unit::kScale, kScaleLow = Unit::kScale - kScale;
  static constexpr float kCurve[] = {
      float(-0x1.fffffap-2 * Unit::kScale), float(0x1.55587p-2 * Unit::kScale),
      float(-0x1.0040a4p-2 * Unit::kScale), float(0x1.86f8fep-3 * Unit::kScale)};
  constexpr LogTable() : two(), high(), low() {
    const auto split = [](double log, float& first, float& rest) {
      first = int(log * Unit::kScale * 32768 + (log < 0 ? -0.5 : 0.5)) / 32768.0f;
      rest = float(log * Unit::kScale - first);
    };
    split(0x1.62e42fefa39efp-1, two[0], two[1]);
    for (int i = 0; i < 16; ++i) split(-kLogOfInverse[i], high[i], low[i]);
  }
};
struct Natural {
  static constexpr double kScale = 1;
};
struct Binary {
  static constexpr double kScale = 0x1.71547652b82fep0;
};
struct Decimal {
  static constexpr double kScale = 0x1.bcb7b1526e50ep-2;
};
// The logarithm of 2^n * (1 + f) / inverse, and rest.
template <class Unit, class Rest = NoRest>
MEMBOUND_ALWAYS_INLINE F32 log_from(const Mantissa& m, F32 f, Rest rest = {}) {
  static constexpr LogTable<Unit> kTable;
  using T = LogTable<Unit>;
  const F32 whole = multiply_add(m.n, F32{} + kTable.two[0], look_up(kTable.high, m.index));
  F32 low = look_up(kTable.low, m.index);
  if constexpr (kTable.two[1] != 0) low = multiply_add(m.n, F32{} + kTable.two[1], low);
  if constexpr (sizeof(Rest) == sizeof(F32)) low += rest;
  low = multiply_add(f, multiply_add(f, curve_from<0, T>(f), F32{} + T::kScaleLow), low);
  if constexpr (!kFusesProducts) low += product(f, F32{} + T::kScale).low;
  return whole + multiply_add(f, F32{} + T::kScale, low);
}
template <class Unit>
MEMBOUND_ALWAYS_INLINE F32 log_of(F32 x) {
  const Mantissa m = mantissa_of(x);
  const F32 mantissa = bit_copy<F32>(bit_copy<I32>(x) - m.exponent);
  return log_from<Unit>(m, excess_of(mantissa, m.inverse, F32{} + 1.0f));
}
// log(1 + x + rest) for x < 2^125. With these mantissas, above_one is exact.
template <class Rest = NoRest>
MEMBOUND_ALWAYS_INLINE F32 log1p_of(F32 x, Rest rest = {}) {
  const Mantissa m = mantissa_of(1 + x);
  const F32 scale = bit_copy<F32>(bit_copy<I32>(F32{} + 1.0f) - m.exponent);
  const F32 above_one = multiply_add(x, scale, scale - 1);
  const F32 f = excess_of(above_one, m.inverse, 1 - m.inverse);
  if constexpr (sizeof(Rest) == sizeof(F32)) {
    return log_from<Natural>(m, f, rest * (scale * m.inverse));
  }
  const F32 log = log_from<Natural>(m, f);
  return x == 0 ? x : log;  // with the sign of 0
}
// Of |x| < 2^60.
MEMBOUND_ALWAYS_INLINE F32 asinh_of(F32 x) {
  const F32 size = absolute(x), square = size * size;
  const auto [z, rest] = sum(size, square / (1 + square_root(1 + square)));
  return with_sign(log1p_of(z, rest), sign_of(x));
}
// Of 1 <= x < 2^60.
MEMBOUND_ALWAYS_INLINE F32 acosh_of(F32 x) {
  const F32 t = x - 1, square = multiply_add(t, t, 2 * t), root = square_root(square);
  const F32 lost = excess_of(root, root, square) * -0.5f * rough_inverse(root);
  const auto [z, rest] = sum(root, t);
  return log1p_of(z, rest + lost);
}
// Of |x| < 1: half of log1p(q) for q = 2 x / (1 - x).
MEMBOUND_ALWAYS_INLINE F32 atanh_of(F32 x) {
  const F32 size = absolute(x), below = 1 - size, lost = (1 - below) - size;
  const F32 q = 2 * size / below;
  const F32 excess = excess_of(q, below, 2 * size) + q * lost;
  return with_sign(0.5f * log1p_of(q, -excess * rough_inverse(below)), sign_of(x));
}

// --- exponentials ---

// exp(x) - 1 = 2 * (power * (1 + growth) - 1 / 2) with power = 2^(n - 1).
MEMBOUND_ALWAYS_INLINE F32 expm1_of(F32 x) {
  using E = Exponential<float>;
  constexpr float kShifted = E::kWhole + (E::kBias - 1);
  const F32 limited = at_most(at_least(x, F32{} - 20.0f), F32{} + 89.0f);
  const F32 shifted = multiply_add(limited, F32{} + E::kLog2E, F32{} + kShifted);
  const F32 n = shifted - kShifted, power = bit_copy<F32>(bit_copy<I32>(shifted) << 23);
  const F32 most = multiply_add(n, F32{} - E::kLn2High, limited), less = n * E::kLn2Low;
  const F32 r = most - less, lost = (most - r) - less;
  const F32 rest = multiply_add(r * r, curve_from<0, E>(r), lost);
  const F32 begin = power - 0.5f, high = multiply_add(power, r, begin);
  const F32 low = multiply_add(power, r, begin - high);
  return absolute(x) < 0x1p-25f ? x : 2 * (high + multiply_add(power, rest, low));
}

// exp(x) = 4 * power * (1 + even + odd) and exp(-x) = 4 * inverse * (1 + even - odd) for 0 <= x <
// 89.7: even and odd are cosh(r) - 1 and sinh(r) for x = n * log(2) + r, within 2^-27.
struct EvenGrowth {
  static constexpr float kCurve[] = {0x1p-1f, 0x1.5554e6p-5f, 0x1.6d4f24p-10f};
};
struct OddGrowth {
  static constexpr float kCurve[] = {0x1.5554aep-3f, 0x1.1228f2p-7f};
};
struct Growths {
  F32 up, down, power, inverse;  // even + odd, even - odd
};
MEMBOUND_ALWAYS_INLINE Growths growths_of(F32 x) {
  using E = Exponential<float>;
  constexpr float kShifted = E::kWhole + (E::kBias - 2);
  const F32 shifted = multiply_add(x, F32{} + E::kLog2E, F32{} + kShifted);
  const F32 n = shifted - kShifted;
  const F32 high_part = multiply_add(n, F32{} - E::kLn2High, x);
  const F32 r = multiply_add(n, F32{} - E::kLn2Low, high_part), square = r * r;
  const I32 power = bit_copy<I32>(shifted) << 23;
  const I32 inverse = (2 * (E::kBias - 2) << 23) - power;
  const F32 even = square * curve_from<0, EvenGrowth>(square);
  const F32 odd_rest = r * square * curve_from<0, OddGrowth>(square);
  return {r + (even + odd_rest), (even - odd_rest) - r, bit_copy<F32>(power),
          bit_copy<F32>(inverse > 0 ? inverse : I32{})};
}
MEMBOUND_ALWAYS_INLINE F32 cosh_of(F32 x) {
  const auto [up, down, power, inverse] = growths_of(at_most(absolute(x), F32{} + 89.7f));
  return 2 * (power + multiply_add(power, up, multiply_add(inverse, down, inverse)));
}
// sinh(x) = x + x^3 * curve(x^2) for |x| <= 1, within 2^-25.
struct SmallSinh {
  static constexpr float kCurve[] = {0x1.55559ap-3f, 0x1.10f6fap-7f, 0x1.ab5438p-13f};
};
MEMBOUND_ALWAYS_INLINE F32 sinh_of(F32 x) {
  const F32 size = absolute(x), square = size * size;
  const F32 small = multiply_add(size * square, curve_from<0, SmallSinh>(square), size);
  const auto [up, down, power, inverse] = growths_of(at_most(size, F32{} + 89.7f));
  const F32 large = 2 * (power + multiply_add(power, up, -multiply_add(inverse, down, inverse)));
  return with_sign(size < 1 ? small : large, sign_of(x));
}

// (log2(1 + f) / f - kScale - kSquare * f) / f^2, a minimax polynomial: log2(1 + f) within 2^-33 of
// itself.
struct LongLog2 {
  static constexpr float kSquare = -0x1.715476p-1f;
  static constexpr float kCurve[] = {0x1.ec7098p-2f, -0x1.715b6cp-2f, 0x1.27c372p-2f,
                                     -0x1.cfe27ep-3f};
};
// Of normal x > 0, within 2^-33 of itself.
MEMBOUND_ALWAYS_INLINE Two<F32> long_log2_of(F32 x) {
  using T = LogTable<Binary>;
  static constexpr T kTable;
  const Mantissa m = mantissa_of(x);
  const F32 mantissa = bit_copy<F32>(bit_copy<I32>(x) - m.exponent);
  const F32 f = excess_of(mantissa, m.inverse, F32{} + 1.0f);
  const auto line = product(f, F32{} + T::kScale), square = product(f, f);
  const auto parabola = product(square.high, F32{} + LongLog2::kSquare);
  const auto first = sum(m.n + look_up(kTable.high, m.index), line.high);
  const auto all = sum(first.high, parabola.high);
  F32 low = multiply_add(f, F32{} + T::kScaleLow, line.low + look_up(kTable.low, m.index));
  low = multiply_add(square.low, F32{} + LongLog2::kSquare, low + parabola.low);
  low = multiply_add(f * square.high, curve_from<0, LongLog2>(f), low);
  return {all.high, (first.low + all.low) + low};
}
// (2^r - 1) / r - log(2) for |r| <= 1 / 2, over r, a minimax polynomial: within 2^-28 of 2^r.
struct Exp2 {
  static constexpr float kCurve[] = {0x1.ebfbep-3f, 0x1.c6af78p-5f, 0x1.3b2a32p-7f, 0x1.5f0aa6p-10f,
                                     0x1.443cf2p-13f};
};
// Of normal x > 0; 0 where the power leaves [2^-126, 2^126].
MEMBOUND_ALWAYS_INLINE F32 pow_of(F32 x, F32 y) {
  constexpr float kShifted = Exponential<float>::kWhole + Exponential<float>::kBias;
  const auto log = long_log2_of(x);
  const auto whole = product(y, log.high);
  const F32 low = multiply_add(y, log.low, whole.low), shifted = (whole.high + low) + kShifted;
  const F32 r = (whole.high - (shifted - kShifted)) + low;
  const F32 power = bit_copy<F32>(bit_copy<I32>(shifted) << 23);
  const F32 growth = multiply_add(r, F32{} + 0x1.62e43p-1f, r * r * curve_from<0, Exp2>(r));
  return absolute(whole.high) < 126 ? multiply_add(growth, power, power) : F32{};
}

// --- sines ---

struct HalfTurn {
  // (sin(r) / r - 1) / r^2 in r^2 for |r| <= pi / 2, interpolated at Chebyshev nodes: sin(r) within
  // 2^-33 of itself.
  static constexpr double kCurve[] = {-0x1.555555545de10p-3, 0x1.11110fd836a07p-7,
                                      -0x1.a019043a2fae2p-13, 0x1.719648f903ff1p-19,
                                      -0x1.9da9693ee0fc4p-26};
};
constexpr double kRightAngle = 0x1.921fb54442d18p0;
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
  return with_sign(sine, bit_copy<BitsF64>(shifted) << 63);
}
MEMBOUND_ALWAYS_INLINE F32 sin_of(F32 x) {
  return by_doubles([](F64 a) MEMBOUND_INLINED { return sine_of(a, 0); }, x);
}
MEMBOUND_ALWAYS_INLINE F32 cos_of(F32 x) {
  return by_doubles([](F64 a) MEMBOUND_INLINED { return sine_of(a, 0.5); }, x);
}

// (tan(r) / r - 1) / r^2 in r^2 for |r| <= pi / 4, a minimax polynomial: within 2^-25 of tan(r).
struct Tangent {
  static constexpr float kCurve[] = {0x1.5554dep-2f, 0x1.112ddep-3f, 0x1.b587e8p-5f,
                                     0x1.905862p-6f, 0x1.9810cap-9f, 0x1.33a66ep-7f};
};
// Of |x| <= 10^7.
MEMBOUND_ALWAYS_INLINE F32 far_tan_of(F32 x) {
  return by_doubles([](F64 a) MEMBOUND_INLINED { return sine_of(a, 0) / sine_of(a, 0.5); }, x);
}
// Of |x| <= kMostOfTangent: x = n * pi / 2 + r + rest.
constexpr float kMostOfTangent = kFusesProducts ? 1e5f : 1e7f;
MEMBOUND_ALWAYS_INLINE F32 tan_of(F32 x) {
  if constexpr (!kFusesProducts) return far_tan_of(x);
  constexpr float kWhole = Exponential<float>::kWhole, kTwoOverPi = 0x1.45f306p-1f;
  constexpr float kParts[] = {0x1.921fb4p0f, 0x1.4442d2p-24f, -0x1.ee59dap-50f};
  const F32 shifted = multiply_add(x, F32{} + kTwoOverPi, F32{} + kWhole), n = shifted - kWhole;
  const F32 most = multiply_add(n, F32{} - kParts[0], x);  // exact
  const auto less = product(n, F32{} + kParts[1]);
  const F32 r = most - less.high, lost = ((most - r) - less.high) - less.low;
  const F32 rest = multiply_add(n, F32{} - kParts[2], lost), square = r * r;
  const F32 more =
      multiply_add(r * square, curve_from<0, Tangent>(square), multiply_add(square, rest, rest));
  const auto [high, low] = sum(r, more);
  const F32 inverse = -1 / high;
  const F32 error = multiply_add(inverse, low, multiply_add(inverse, high, F32{} + 1.0f));
  const F32 steep = multiply_add(inverse, error, inverse);
  const F32 tangent = (bit_copy<I32>(shifted) & 1) != 0 ? steep : high;
  return x == 0 ? x : tangent;  // with the sign of 0
}

// --- their inverses ---

// steps * pi / 2 + t + rest; `steps` is 0, 1 or 2.
struct Angle {
  F32 steps, t, rest;
};
MEMBOUND_ALWAYS_INLINE F32 value_of(const Angle& a) {
  constexpr float kHigh = kRightAngle, kLow = kRightAngle - kHigh;
  const auto [high, low] = sum(a.steps * kHigh, a.t);
  return high + (low + multiply_add(a.steps, F32{} + kLow, a.rest));
}

// (atan(t) / t - 1) / t^2 in t^2 for |t| <= 1, a minimax polynomial: within 2^-28 of atan(t).
struct Arctangent {
  static constexpr float kCurve[] = {-0x1.55553ep-2f, 0x1.9991e6p-3f,  -0x1.2420b6p-3f,
                                     0x1.c08f64p-4f,  -0x1.58155ep-4f, 0x1.da5ed4p-5f,
                                     -0x1.fdfc1cp-6f, 0x1.64c1cep-7f,  -0x1.d4984ap-10f};
};
MEMBOUND_ALWAYS_INLINE F32 arctangent_of(F32 steps, F32 t, F32 rest) {
  const F32 square = t * t;
  return value_of({steps, t, multiply_add(t * square, curve_from<0, Arctangent>(square), rest)});
}
MEMBOUND_ALWAYS_INLINE F32 atan_of(F32 x) {
  const F32 size = absolute(x), zero = {};
  const auto is_steep = size > 1;
  const F32 t = is_steep ? -1 / size : size;
  return with_sign(arctangent_of(is_steep ? zero + 1.0f : zero, t, zero), sign_of(x));
}
// Of numbers that are not 0 and below 2^125.
MEMBOUND_ALWAYS_INLINE F32 atan2_of(F32 y, F32 x) {
  const F32 a = absolute(y), b = absolute(x), zero = {};
  const auto is_steep = a > b;
  const F32 over = with_sign(is_steep ? -b : a, sign_of(x)), under = is_steep ? a : b;
  const F32 t = over / under, slope = rough_inverse(multiply_add(t, over, under));
  const F32 steps = is_steep ? zero + 1.0f : x < 0 ? zero + 2.0f : zero;
  const F32 angle = arctangent_of(steps, t, -excess_of(t, under, over) * slope);
  return with_sign(angle, sign_of(y));
}

// (asin(s) / s - 1) / s^2 in s^2 for s <= 1 / 2, a minimax polynomial: within 2^-27 of asin(s).
struct Arcsine {
  static constexpr float kCurve[] = {0x1.5555cap-3f, 0x1.33016ap-4f, 0x1.748a2cp-5f, 0x1.8bb538p-6f,
                                     0x1.59cc8ep-5f};
};
// asin(|x|): of |x| itself, or pi / 2 - 2 * asin(s) where s is the root of (1 - |x|) / 2.
MEMBOUND_ALWAYS_INLINE Angle arcsine(F32 x) {
  const F32 size = absolute(x), half = (1 - size) * 0.5f, root = square_root(half), zero = {};
  const auto is_small = size < 0.5f;
  const F32 s = is_small ? size : root, square = is_small ? size * size : half;
  const F32 lost = excess_of(root, root, half) * -0.5f * rough_inverse(root);
  const F32 rest = multiply_add(s * square, curve_from<0, Arcsine>(square), is_small ? zero : lost);
  const F32 factor = is_small ? zero + 1.0f : zero - 2.0f;
  return {is_small ? zero : zero + 1.0f, s * factor, rest * factor};
}
MEMBOUND_ALWAYS_INLINE F32 asin_of(F32 x) { return with_sign(value_of(arcsine(x)), sign_of(x)); }
MEMBOUND_ALWAYS_INLINE F32 acos_of(F32 x) {
  const Angle a = arcsine(x);
  const I32 sign = sign_of(-x);
  return value_of({1 + with_sign(a.steps, sign), with_sign(a.t, sign), with_sign(a.rest, sign)});
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
