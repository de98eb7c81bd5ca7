// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/array_blocks.hpp"

// Division of integers by that of floats, which there are vectors of. Quotients are rounded down
// exactly where the floats hold the integers and halves of them: float32 those of 8 and 16 bits,
// float64 those of 32 bits and the small ones of 64.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <int kBytes>
struct FloatOf {
  using Float = double;
  using Bits = std::uint64_t;
  static constexpr double kWhole = 0x1.8p52;  // a sum with it has the integer in its lowest bits
};
template <>
struct FloatOf<2> {
  using Float = float;
  using Bits = std::uint32_t;
  static constexpr float kWhole = 0x1.8p23f;
};
template <>
struct FloatOf<1> : FloatOf<2> {};

template <class A>
using Float = typename FloatOf<sizeof(A)>::Float;
template <class A>
using FloatBits = typename FloatOf<sizeof(A)>::Bits;

template <class A>
MEMBOUND_ALWAYS_INLINE Float<A> to_float(A value) {
  constexpr Float<A> kWhole = FloatOf<sizeof(A)>::kWhole;
  const auto bits = static_cast<FloatBits<A>>(value) + bit_copy<FloatBits<A>>(kWhole);
  return bit_copy<Float<A>>(bits) - kWhole;
}
template <class A>
MEMBOUND_ALWAYS_INLINE A nearest_to(Float<A> value) {
  constexpr Float<A> kWhole = FloatOf<sizeof(A)>::kWhole;
  return static_cast<A>(bit_copy<FloatBits<A>>(value + kWhole) - bit_copy<FloatBits<A>>(kWhole));
}
template <class A>
MEMBOUND_ALWAYS_INLINE A floor_of(Float<A> value) {
  constexpr Float<A> kWhole = FloatOf<sizeof(A)>::kWhole;
  const Float<A> nearest = value + kWhole - kWhole;
  return nearest_to<A>(nearest - static_cast<Float<A>>(nearest > value));
}

// A function and what it is of x, y and the quotient.
struct FloorDivision : functors::FloorDivide {
  template <class A>
  static MEMBOUND_ALWAYS_INLINE A of_quotient(A, A y, A quotient) {
    return y == 0 ? A(0) : quotient;
  }
};
struct Rest : functors::Remainder {
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

template <class F>
void run_division(const ArrayBlocks& blocks) {
  with_type(blocks.dtype, [&]<class A>(TypeTag<A>) MEMBOUND_INLINED {
    constexpr bool kIsBool = scalar::kSameType<A, bool>;
    // Vectors of 16 bytes gain nothing.
    if constexpr (!kIsBool && !scalar::Number<A>::kFloating && kVectorBytes > 16) {
      divide_blocks<F, A>(blocks);
    } else if constexpr (!kIsBool) {
      BlockLoop<F, A, 2>::run(blocks);
    }
  });
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
