// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/exponential.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// tanh(u) and its slope, accurate where either is small: with e = exp(-2 |u|) = power + growth *
// power they are (1 - e) / (1 + e) and 4 e / (1 + e)^2, and 1 - power is exact. A slope below
// exp(kSubnormalEdge) is 0.
template <class V>
struct Tanh {
  V value, slope;
};
template <class A, class V>
MEMBOUND_ALWAYS_INLINE Tanh<V> tanh_of(V u) {
  typedef decltype(u < u) Bits;
  const Bits sign = bit_copy<Bits>(u) & bit_copy<Bits>(-V{});
  const V whole = bit_copy<V>(bit_copy<Bits>(u) ^ sign) * 2,
          highest = V{} - Exponential<A>::kSubnormalEdge;
  const V twice = at_most(whole, highest);
  const auto [growth, power] = power_of_minus<A, 0>(twice, NoRest{});
  const V rest = growth * power, inverse = 1 / ((1 + power) + rest);
  const V value = ((1 - power) - rest) * inverse;
  const V slope = 4 * (power + rest) * inverse * inverse;
  return {bit_copy<V>(bit_copy<Bits>(value) ^ sign), whole > highest ? V{} : slope};
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
