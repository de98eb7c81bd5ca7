// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/partial_step.hpp"

// Rotary embedding of one step, for the units per instruction set. cos and sin are arranged as
// kernels/rope.hpp says.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class V>
struct Halves {
  Pair<V> first, second;
};

// Rotates the first and the second elements of some pairs. `second` is the distance to the cos and
// sin of the second elements; 0: both share theirs.
template <class V, class A>
MEMBOUND_ALWAYS_INLINE Halves<V> rotated_halves(Pair<V> a, Pair<V> b, const A* cos, const A* sin,
                                                std::int64_t second) {
  const auto c = load_pair<V>(cos), s = load_pair<V>(sin);
  const auto d = second == 0 ? c : load_pair<V>(cos + second);
  const auto t = second == 0 ? s : load_pair<V>(sin + second);
  return {{a.first * c.first - b.first * s.first, a.second * c.second - b.second * s.second},
          {b.first * d.first + a.first * t.first, b.second * d.second + a.second * t.second}};
}

template <class V>
MEMBOUND_ALWAYS_INLINE V adjacent_swapped(V value) {
  using A = decltype(value[0] + value[0]);
  constexpr int kCount = sizeof(V) / sizeof(A);
  if constexpr (kCount == 16) {
    return __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15,
                                   14);
  } else if constexpr (kCount == 8) {
    return __builtin_shufflevector(value, value, 1, 0, 3, 2, 5, 4, 7, 6);
  } else if constexpr (kCount == 4) {
    return __builtin_shufflevector(value, value, 1, 0, 3, 2);
  } else {
    return __builtin_shufflevector(value, value, 1, 0);
  }
}

// Rotates one step of interleaved pairs, `at` being its first element among the rotated ones. For
// bfloat16, even and odd elements are in separate vectors; otherwise cos and sin hold every number
// twice, with the sign in sin.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> rotated_interleaved(
    Pair<typename Lanes<T>::V> value, std::int64_t at, const typename Lanes<T>::A* cos,
    const typename Lanes<T>::A* sin, std::int64_t second) {
  using V = typename Lanes<T>::V;
  if constexpr (Lanes<T>::kEvenOdd) {
    const V c = load<V>(cos + at / 2), s = load<V>(sin + at / 2);
    const V d = second == 0 ? c : load<V>(cos + second + at / 2);
    const V t = second == 0 ? s : load<V>(sin + second + at / 2);
    return {value.first * c - value.second * s, value.second * d + value.first * t};
  } else {
    const auto c = load_pair<V>(cos + at), s = load_pair<V>(sin + at);
    return {value.first * c.first + adjacent_swapped(value.first) * s.first,
            value.second * c.second + adjacent_swapped(value.second) * s.second};
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
