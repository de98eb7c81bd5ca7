// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

MEMBOUND_ALWAYS_INLINE F32 multiply_add(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
MEMBOUND_ALWAYS_INLINE F64 multiply_add(F64 a, F64 b, F64 c) { return _mm512_fmadd_pd(a, b, c); }

// float16 rows use 256-bit vectors: a 512-bit conversion takes more than twice as long on Zen 4.
typedef float HalfRowF32 __attribute__((vector_size(32)));
MEMBOUND_ALWAYS_INLINE HalfRowF32 multiply_add(HalfRowF32 a, HalfRowF32 b, HalfRowF32 c) {
  return _mm256_fmadd_ps(a, b, c);
}

// The instruction returns its second operand if either is NaN; a comparison and a blend are slower.
MEMBOUND_ALWAYS_INLINE F32 at_least(F32 value, F32 bound) { return _mm512_max_ps(bound, value); }
MEMBOUND_ALWAYS_INLINE F64 at_least(F64 value, F64 bound) { return _mm512_max_pd(bound, value); }
MEMBOUND_ALWAYS_INLINE HalfRowF32 at_least(HalfRowF32 value, HalfRowF32 bound) {
  return _mm256_max_ps(bound, value);
}
MEMBOUND_ALWAYS_INLINE F32 at_most(F32 value, F32 bound) { return _mm512_min_ps(bound, value); }
MEMBOUND_ALWAYS_INLINE F64 at_most(F64 value, F64 bound) { return _mm512_min_pd(bound, value); }
MEMBOUND_ALWAYS_INLINE HalfRowF32 at_most(HalfRowF32 value, HalfRowF32 bound) {
  return _mm256_min_ps(bound, value);
}

template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> load_halves(const void* from) {
  if constexpr (sizeof(V) == 64) {
    const auto* halves = static_cast<const __m256i*>(from);
    return {_mm512_cvtph_ps(_mm256_loadu_si256(halves)),
            _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1))};
  } else {
    const auto* halves = static_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
  }
}
MEMBOUND_ALWAYS_INLINE __m128i narrow_half(HalfRowF32 value) {
  return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MEMBOUND_ALWAYS_INLINE __m256i narrow_halves(Pair<HalfRowF32> value) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(narrow_half(value.first)),
                                 narrow_half(value.second), 1);
}
MEMBOUND_ALWAYS_INLINE HalfRowF32 round_to_half(HalfRowF32 value) {
  return _mm256_cvtph_ps(narrow_half(value));
}

// Rounds even and odd elements to bfloat16 (nearest even) and merges them: 6 instructions on 16-bit
// halves instead of 10.
MEMBOUND_ALWAYS_INLINE __m512i pack_bfloat16(Pair<F32> value) {
  const __m512i even = bit_copy<__m512i>(value.first);
  const __m512i odd = bit_copy<__m512i>(value.second);
  const __m512i lower_of =
      _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44,
                       12, 42, 10, 40, 8, 38, 6, 36, 4, 34, 2, 32, 0);
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i lower = _mm512_permutex2var_epi16(even, lower_of, odd);
  const __m512i upper = _mm512_permutex2var_epi16(even, _mm512_add_epi16(lower_of, one), odd);
  // The carry of lower + 0x7fff + (upper & 1) is bit 15 of the rounded-up average.
  constexpr int kAndOr = 0xea;  // (a & b) | c
  const __m512i rounding = _mm512_ternarylogic_epi32(upper, one, _mm512_set1_epi16(0x7ffe), kAndOr);
  const __m512i carry = _mm512_srli_epi16(_mm512_avg_epu16(lower, rounding), 15);
  return _mm512_add_epi16(upper, carry);
}

// table[index[i] % 16]
MEMBOUND_ALWAYS_INLINE F32 look_up(const float (&table)[16], I32 index) {
  return _mm512_permutexvar_ps(bit_copy<__m512i>(index), _mm512_loadu_ps(table));
}
template <class Mask>
MEMBOUND_ALWAYS_INLINE bool is_any(Mask mask) {
  return _mm512_movepi32_mask(bit_copy<__m512i>(mask)) != 0;
}

// Splits a sequence into its even and its odd elements.
MEMBOUND_ALWAYS_INLINE Pair<F32> deinterleave(Pair<F32> value) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(value.first, even, value.second),
          _mm512_permutex2var_ps(value.first, odd, value.second)};
}

// Adds half to half, down to one element.
MEMBOUND_ALWAYS_INLINE float horizontal_sum(HalfRowF32 value) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEMBOUND_ALWAYS_INLINE float horizontal_sum(F32 value) {
  return horizontal_sum(
      _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1)));
}
MEMBOUND_ALWAYS_INLINE double horizontal_sum(F64 value) {
  const __m256d four =
      _mm256_add_pd(_mm512_castpd512_pd256(value), _mm512_extractf64x4_pd(value, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// A non-temporal store. `to` must be aligned to the vector.
template <class V>
MEMBOUND_ALWAYS_INLINE void stream(void* to, V value) {
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(static_cast<__m512i*>(to), bit_copy<__m512i>(value));
  } else {
    _mm256_stream_si256(static_cast<__m256i*>(to), bit_copy<__m256i>(value));
  }
}
MEMBOUND_ALWAYS_INLINE void stream_fence() { _mm_sfence(); }

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
