// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// 16-byte vectors in the compiler's own arithmetic: x86-64 without extensions, and any other CPU.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

typedef F32 HalfRowF32;

// No FMA here: the product is rounded as well.
template <class V>
MEMBOUND_ALWAYS_INLINE V multiply_add(V a, V b, V c) {
  return a * b + c;
}

#if defined(__SSE2__)
// The instruction returns its second operand if either is NaN.
MEMBOUND_ALWAYS_INLINE F32 at_least(F32 value, F32 bound) { return _mm_max_ps(bound, value); }
MEMBOUND_ALWAYS_INLINE F64 at_least(F64 value, F64 bound) { return _mm_max_pd(bound, value); }
MEMBOUND_ALWAYS_INLINE F32 at_most(F32 value, F32 bound) { return _mm_min_ps(bound, value); }
MEMBOUND_ALWAYS_INLINE F64 at_most(F64 value, F64 bound) { return _mm_min_pd(bound, value); }
#else
template <class V>
MEMBOUND_ALWAYS_INLINE V at_least(V value, V bound) {
  return value < bound ? bound : value;
}
template <class V>
MEMBOUND_ALWAYS_INLINE V at_most(V value, V bound) {
  return value > bound ? bound : value;
}
#endif

// Below 2^31 a signed comparison gives the same result, and SSE2 has an instruction for it.
MEMBOUND_ALWAYS_INLINE U32 select_above(U32 value, std::int32_t limit, U32 above, U32 otherwise) {
  const U32 mask = bit_copy<U32>(bit_copy<I32>(value) > limit);
  return (above & mask) | (otherwise & ~mask);
}

// float16 by integer operations. The product with 2^112 rebiases the exponent, exactly for
// subnormals too.
MEMBOUND_ALWAYS_INLINE F32 widen_half(U32 half) {
  const U32 magnitude = half & 0x7fffu;
  const F32 two_to_112 = bit_copy<F32>(U32{} + 0x77800000u);
  const U32 finite = bit_copy<U32>(bit_copy<F32>(magnitude << 13) * two_to_112);
  const U32 special = (magnitude << 13) | 0x7f800000u;
  const U32 bits = select_above(magnitude, 0x7bff, special, finite);
  return bit_copy<F32>(bits | ((half & 0x8000u) << 16));
}
MEMBOUND_ALWAYS_INLINE U32 narrow_half(F32 value) {
  const U32 bits = bit_copy<U32>(value);
  const U32 magnitude = bits & 0x7fffffffu;
  // Normal numbers: round to even at bit 13. Below 2^-14: adding 0.5 makes the hardware round at
  // 2^-24.
  const U32 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  const U32 small = bit_copy<U32>(bit_copy<F32>(magnitude) + 0.5f) - 0x3f000000u;
  U32 half = select_above(magnitude, 0x387fffff, normal, small);
  half = select_above(magnitude, 0x477fefff, U32{} + 0x7c00u, half);
  half = select_above(magnitude, 0x7f800000, U32{} + 0x7e00u, half);
  return half | ((bits >> 16) & 0x8000u);
}

template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> load_halves(const void* from) {
  const U16 halves = load<U16>(from);
#if defined(__SSE2__)
  const __m128i bits = bit_copy<__m128i>(halves);
  const __m128i none = _mm_setzero_si128();
  return {widen_half(bit_copy<U32>(_mm_unpacklo_epi16(bits, none))),
          widen_half(bit_copy<U32>(_mm_unpackhi_epi16(bits, none)))};
#else
  const U16 zero = {};
  return {
      widen_half(bit_copy<U32>(__builtin_shufflevector(halves, zero, 0, 8, 1, 9, 2, 10, 3, 11))),
      widen_half(bit_copy<U32>(__builtin_shufflevector(halves, zero, 4, 12, 5, 13, 6, 14, 7, 15)))};
#endif
}
MEMBOUND_ALWAYS_INLINE U16 narrow_halves(Pair<F32> value) {
#if defined(__SSE2__)
  // SSE2 packs with signed saturation only; sign extension from bit 15 keeps every pattern.
  const auto extended = [](U32 half) {
    return _mm_srai_epi32(_mm_slli_epi32(bit_copy<__m128i>(half), 16), 16);
  };
  return bit_copy<U16>(
      _mm_packs_epi32(extended(narrow_half(value.first)), extended(narrow_half(value.second))));
#else
  return __builtin_shufflevector(bit_copy<U16>(narrow_half(value.first)),
                                 bit_copy<U16>(narrow_half(value.second)), 0, 2, 4, 6, 8, 10, 12,
                                 14);
#endif
}
MEMBOUND_ALWAYS_INLINE F32 round_to_half(F32 value) { return widen_half(narrow_half(value)); }

// Splits a sequence into its even and its odd elements.
MEMBOUND_ALWAYS_INLINE Pair<F32> deinterleave(Pair<F32> value) {
  return {__builtin_shufflevector(value.first, value.second, 0, 2, 4, 6),
          __builtin_shufflevector(value.first, value.second, 1, 3, 5, 7)};
}

// Adds half to half, down to one element.
MEMBOUND_ALWAYS_INLINE float horizontal_sum(F32 value) {
  return (value[0] + value[2]) + (value[1] + value[3]);
}
MEMBOUND_ALWAYS_INLINE double horizontal_sum(F64 value) { return value[0] + value[1]; }

// A non-temporal store. `to` must be aligned to the vector.
template <class V>
MEMBOUND_ALWAYS_INLINE void stream(void* to, V value) {
#if defined(__SSE2__)
  _mm_stream_si128(static_cast<__m128i*>(to), bit_copy<__m128i>(value));
#else
  store(to, value);
#endif
}
MEMBOUND_ALWAYS_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
