// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/elementary.hpp"
#include "cpu/kernels/array_blocks.hpp"

// Division of integers by that of floats, which there are vectors of. Quotients are rounded down
// exactly where the floats hold the integers and halves of them: float32 those of 8 and 16 bits,
// float64 those of 32 bits and the small ones of 64.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <bool kIsNarrow>
struct FloatOf {
  using Float = double;
  using Bits = std::uint64_t;
};
template <>
struct FloatOf<true> {
  using Float = float;
  using Bits = std::uint32_t;
};
template <class A>
using Float = typename FloatOf<(sizeof(A) <= 2)>::Float;
template <class A>
using FloatBits = typename FloatOf<(sizeof(A) <= 2)>::Bits;

template <class A>
MEMBOUND_ALWAYS_INLINE Float<A> to_float(A value) {
  constexpr Float<A> kWhole = Exponential<Float<A>>::kWhole;
  const auto bits = static_cast<FloatBits<A>>(value) + bit_copy<FloatBits<A>>(kWhole);
  return bit_copy<Float<A>>(bits) - kWhole;
}
template <class A>
MEMBOUND_ALWAYS_INLINE A nearest_to(Float<A> value) {
  constexpr Float<A> kWhole = Exponential<Float<A>>::kWhole;
  return static_cast<A>(bit_copy<FloatBits<A>>(value + kWhole) - bit_copy<FloatBits<A>>(kWhole));
}
template <class A>
MEMBOUND_ALWAYS_INLINE A floor_of(Float<A> value) {
  constexpr Float<A> kWhole = Exponential<Float<A>>::kWhole;
  const Float<A> nearest = value + kWhole - kWhole;
  return nearest_to<A>(nearest - static_cast<Float<A>>(nearest > value));
}

// Of vectors of floats.
template <class V>
constexpr auto kWholeOf = Exponential<float>::kWhole;
template <>
constexpr auto kWholeOf<F64> = Exponential<double>::kWhole;
template <class V>
MEMBOUND_ALWAYS_INLINE V round_to_integer(V x) {
  return x + kWholeOf<V> - kWholeOf<V>;
}

// |x| modulo |y|, which a fused product gives exactly; NaN where it may not.
template <class V>
MEMBOUND_ALWAYS_INLINE V rest_of(V x, V y) {
  const V quotient = x / y, nearest = round_to_integer(quotient);
  const V distance = multiply_add(-nearest, y, x);
  const V rest = distance < 0 ? distance + y : distance;
  return quotient < kWholeOf<V> / 8 ? rest : V{} + __builtin_nanf("");
}

// A function, of vectors of floats, and what it is of integers x, y and the quotient.
struct FloorDivision : functors::FloorDivide {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vector(V x, V y) {
    const V size = absolute(y), rest = rest_of(absolute(x), size);
    const V whole = (absolute(x) - rest) / size;
    const auto differ = sign_of(x) ^ sign_of(y);
    const V below = -whole - 1;
    const V quotient = differ == 0 ? whole : rest == 0 ? -whole : below;
    const V nearest = round_to_integer(quotient);
    const V floor = nearest > quotient ? nearest - 1 : nearest;
    const V result = quotient - floor > V{} + 0.5f ? floor + 1 : floor;
    return quotient == 0 ? with_sign(V{}, differ) : result;
  }
  template <class V>
  static MEMBOUND_ALWAYS_INLINE auto is_special(V, V, V found) {
    return found != found;
  }
  template <class A>
  static MEMBOUND_ALWAYS_INLINE A of_quotient(A, A y, A quotient) {
    return y == 0 ? A(0) : quotient;
  }
};
struct Rest : functors::Remainder {
  template <class V>
  static MEMBOUND_ALWAYS_INLINE V vector(V x, V y) {
    const V size = absolute(y), rest = rest_of(absolute(x), size);
    const auto differ = sign_of(x) ^ sign_of(y);
    return with_sign((differ == 0) | (rest == 0) ? rest : size - rest, sign_of(y));
  }
  template <class V>
  static MEMBOUND_ALWAYS_INLINE auto is_special(V, V, V found) {
    return found != found;
  }
  template <class A>
  static MEMBOUND_ALWAYS_INLINE A of_quotient(A x, A y, A quotient) {
    using W = functors::Wide<A>;
    const A rest = static_cast<A>(W(x) - W(quotient) * W(y));
    return y == 0 ? A(0) : rest;
  }
};

template <class A>
bool are_small(const A* x, std::int64_t count) {
  if constexpr (sizeof(A) < 8) return true;
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 50;
  constexpr std::uint64_t kLowest = scalar::Number<A>::kSigned ? kLimit : 0;
  std::uint64_t all = 0;
  for (std::int64_t i = 0; i < count; ++i) all |= static_cast<std::uint64_t>(x[i]) + kLowest;
  return all < kLimit + kLowest;
}

template <class F, class A>
void divide(const A* x, const A* y, A* result, std::int64_t count) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i)
    result[i] = F::of_quotient(x[i], y[i], floor_of<A>(to_float(x[i]) / to_float(y[i])));
}
// By a product. Half of 1 / y more has the same floor, and is further from integers than rounding
// goes, so that it is the integer nearest to one half less.
template <class F, class A>
void divide_by_number(const A* x, A y, A* result, std::int64_t count) {
  const Float<A> inverse = 1 / to_float(y), half = y < 0 ? Float<A>(-0.5) : Float<A>(0.5);
#pragma GCC ivdep
  for (std::int64_t i = 0; i < count; ++i)
    result[i] =
        F::of_quotient(x[i], y, nearest_to<A>((to_float(x[i]) + half) * inverse - Float<A>(0.5)));
}

template <class F, class A>
void divide_blocks(const ArrayBlocks& blocks) {
  const A *x = static_cast<const A*>(blocks.inputs[0]),
          *y = static_cast<const A*>(blocks.inputs[1]);
  A* result = static_cast<A*>(blocks.result);
  for (std::int64_t at = 0; at < blocks.count; at += blocks.block) {
    const std::int64_t left = blocks.count - at, count = left < blocks.block ? left : blocks.block;
    if (!are_small(x, count) || !are_small(y, count)) {
      for (std::int64_t i = 0; i < count; ++i) result[at + i] = F::apply(x[i], y[i]);
    } else if (blocks.advance[1] == 0) {
      divide_by_number<F>(x, *y, result + at, count);
    } else {
      divide<F>(x, y, result + at, count);
    }
    x += blocks.advance[0];
    y += blocks.advance[1];
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
