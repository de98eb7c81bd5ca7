// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/exponential.hpp"

// The natural logarithm of every lane; a lane's bits do not depend on the other lanes.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

struct Logarithm {
  typedef std::uint64_t Bits __attribute__((vector_size(kVectorBytes)));
  static constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  static constexpr std::uint64_t kOne = 0x3ff0000000000000;
  static constexpr std::uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd;
  static constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
  // 2 * (atanh(s) - s) / s^3 as a polynomial in s^2 for s <= 3 - sqrt(8), interpolated at Chebyshev
  // nodes: within 2^-57 of the logarithm.
  static constexpr double kCurve[] = {
      0x1.5555555555558p-1, 0x1.9999999995273p-2, 0x1.2492492dfd86cp-2, 0x1.c71c62d5e53e0p-3,
      0x1.7462b91b8df65p-3, 0x1.39fdcceb4bb45p-3, 0x1.2b5f68a50d903p-3};
};

// x = 2^n * (1 + f) with 1 + f in [sqrt(1 / 2), sqrt(2)], for normal positive numbers.
struct PartsOfLogarithm {
  F64 n, f;
};
MEMBOUND_ALWAYS_INLINE PartsOfLogarithm parts_of_logarithm(F64 x) {
  using L = Logarithm;
  // In a double below 2^52, n is in the lowest bits.
  const L::Bits shifted = bit_copy<L::Bits>(x) + (L::kOne - L::kRootOfHalf);
  return {bit_copy<F64>((shifted >> 52) | bit_copy<std::uint64_t>(0x1p52)) - (0x1p52 + 1023),
          bit_copy<F64>((shifted & L::kMantissa) + L::kRootOfHalf) - 1};
}

// log(1 + f) = f - s * rest
struct LogarithmOfMantissa {
  F64 s, rest;
};
MEMBOUND_ALWAYS_INLINE LogarithmOfMantissa logarithm_of_mantissa(F64 f) {
  // log(1 + f) = 2 * atanh(s) for s = f / (2 + f).
  const F64 s = f / (2 + f), square = s * s;
  return {s, f - curve_from<0, Logarithm>(square) * square};
}

// log(x + rest) within 1 ulp for normal positive numbers (three million samples) and a rest below
// an ulp of them; a NaN stays a NaN.
template <class Rest = NoRest>
MEMBOUND_ALWAYS_INLINE F64 log_of(F64 x, Rest rest_of_x = {}) {
  using L = Logarithm;
  const auto [n, f] = parts_of_logarithm(x);
  const auto [s, rest] = logarithm_of_mantissa(f);
  F64 low = n * L::kLn2Low;
  if constexpr (sizeof(Rest) == sizeof(F64)) low += rest_of_x / x;
  const F64 less = multiply_add(s, rest, -low);
  const F64 log = multiply_add(n, F64{} + L::kLn2High, f - less);
  return x == x ? log : x;
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
