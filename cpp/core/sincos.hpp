// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/host_device.hpp"

// Sine and cosine of large angles, by the same operations on CPU and GPU. `static`, because kernels
// of several instruction sets include this header.
namespace membound {

// sin(r) = r + r^3 * sine_rest(r^2) and cos(r) = 1 - r^2 / 2 + r^4 * cosine_rest(r^2) for r from
// -pi/4 to pi/4, interpolated at Chebyshev nodes.
static inline MEMBOUND_HOST_DEVICE float sine_rest(float z) {
  return -0x1.555556p-3f + z * (0x1.11110ep-7f + z * (-0x1.a013a2p-13f + z * 0x1.6dbbeep-19f));
}
static inline MEMBOUND_HOST_DEVICE float cosine_rest(float z) {
  return 0x1.555554p-5f + z * (-0x1.6c12cep-10f + z * 0x1.9bd67p-16f);
}
static inline MEMBOUND_HOST_DEVICE double sine_rest(double z) {
  double sum = 0x1.61217c1864fa1p-33 + z * -0x1.ab161757f0c63p-41;
  sum = -0x1.ae64540f0ba18p-26 + z * sum;
  sum = 0x1.71de3a545e700p-19 + z * sum;
  sum = -0x1.a01a01a019926p-13 + z * sum;
  sum = 0x1.1111111111110p-7 + z * sum;
  return -0x1.5555555555555p-3 + z * sum;
}
static inline MEMBOUND_HOST_DEVICE double cosine_rest(double z) {
  double sum = -0x1.9394b76d1f265p-37 + z * 0x1.ab76cf6e9b365p-45;
  sum = 0x1.1eed8de9ef73ep-29 + z * sum;
  sum = -0x1.27e4fb7711e1dp-22 + z * sum;
  sum = 0x1.a01a01a019d02p-16 + z * sum;
  sum = -0x1.6c16c16c16c16p-10 + z * sum;
  return 0x1.5555555555555p-5 + z * sum;
}

// pi / 2 in two parts (Cody-Waite). n * kHighPart is exact for n below 2^25, an angle of 5e7.
inline constexpr double kRightAngleHighPart = 0x1.921fb54p+0;
inline constexpr double kRightAngleLowPart = 0x1.10b4611a62633p-30;

// The bits of a number. Selecting and negating by bit operations lets compilers vectorise loops of
// sincos_of.
template <class A>
struct NumberBits {
  using type = std::uint32_t;
};
template <>
struct NumberBits<double> {
  using type = std::uint64_t;
};
template <class To, class From>
static inline MEMBOUND_HOST_DEVICE To number_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// Reduces the angle in float64 and evaluates in A; float32 results are within 1.2e-7 for an exact
// angle. Angles of 2^46 and more, with at most 7 bits after the point in float64, give NaN: scaled
// they are infinite, and infinity times zero is NaN.
template <class A>
static inline MEMBOUND_HOST_DEVICE void sincos_of(double angle, A& sine, A& cosine) {
  using Bits = typename NumberBits<A>::type;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1, kWhole = 0x1.8p52, kOverflow = 0x1p978;
  constexpr int kSign = 8 * sizeof(A) - 1;
  const double finite = angle + angle * kOverflow * 0.0;
  const double shifted = finite * kTwoOverPi + kWhole;
  const double n = shifted - kWhole;
  const A r = static_cast<A>((finite - n * kRightAngleHighPart) - n * kRightAngleLowPart);
  const A z = r * r;
  const Bits s = number_bits<Bits>(r + r * z * sine_rest(z));
  const Bits c = number_bits<Bits>((1 - A(0.5) * z) + z * z * cosine_rest(z));
  // The two lowest bits hold the quadrant.
  const Bits quadrant = static_cast<Bits>(number_bits<std::uint64_t>(shifted));
  const Bits swap = Bits{0} - (quadrant & 1);
  sine = number_bits<A>(((s & ~swap) | (c & swap)) ^ ((quadrant >> 1 & 1) << kSign));
  cosine = number_bits<A>(((c & ~swap) | (s & swap)) ^ (((quadrant + 1) >> 1 & 1) << kSign));
}

}  // namespace membound
