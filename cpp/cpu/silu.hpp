// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/exponential.hpp"

// silu(z) = z / (1 + exp(-z)) of every lane, and its slope. Both are finite for finite z, have
// their limits at infinite z, and are subnormal only where the exact result is.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class A, class V>
MEMBOUND_ALWAYS_INLINE V silu(V z) {
  using E = Exponential<A>;
  const Odds<V> odds = odds_of<A>(z);
  const V within = odds.z / odds.sum * E::kScale;
  return z > E::kHighest ? z : within;
}
template <class A, class V>
MEMBOUND_ALWAYS_INLINE Pair<V> silu(Pair<V> z) {
  return {silu<A>(z.first), silu<A>(z.second)};
}

// With s = 1 / (1 + exp(-z)) the slope is s * (1 + z * (1 - s)).
template <class V>
struct Silu {
  V value, slope;
};
template <class A, class V>
MEMBOUND_ALWAYS_INLINE Silu<V> silu_with_slope(V z) {
  using E = Exponential<A>;
  const Odds<V> odds = odds_of<A>(z);
  const V inverse = 1 / odds.sum;
  const V within = odds.z * inverse * E::kScale;  // an ulp worse than the division, which is slow
  const V s = inverse * E::kScale, rest = odds.exp_minus * inverse;
  return {z > E::kHighest ? z : within, s * multiply_add(odds.z, rest, V{} + 1)};
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
