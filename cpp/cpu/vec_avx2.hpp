// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

typedef F32 HalfRowF32;
MEMBOUND_ALWAYS_INLINE F32 multiply_add(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
MEMBOUND_ALWAYS_INLINE F64 multiply_add(F64 a, F64 b, F64 c) { return _mm256_fmadd_pd(a, b, c); }

// The instruction returns its second operand if either is NaN.
MEMBOUND_ALWAYS_INLINE F32 at_least(F32 value, F32 bound) { return _mm256_max_ps(bound, value); }
MEMBOUND_ALWAYS_INLINE F64 at_least(F64 value, F64 bound) { return _mm256_max_pd(bound, value); }
MEMBOUND_ALWAYS_INLINE F32 at_most(F32 value, F32 bound) { return _mm256_min_ps(bound, value); }
MEMBOUND_ALWAYS_INLINE F64 at_most(F64 value, F64 bound) { return _mm256_min_pd(bound, value); }

template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> load_halves(const void* from) {
  const auto* halves = static_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
MEMBOUND_ALWAYS_INLINE __m128i narrow_half(F32 value) {
  return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MEMBOUND_ALWAYS_INLINE __m256i narrow_halves(Pair<F32> value) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(narrow_half(value.first)),
                                 narrow_half(value.second), 1);
}
MEMBOUND_ALWAYS_INLINE F32 round_to_half(F32 value) { return _mm256_cvtph_ps(narrow_half(value)); }

// On 16-bit halves, as with AVX-512: 9 instructions instead of 11.
MEMBOUND_ALWAYS_INLINE __m256i pack_bfloat16(Pair<F32> value) {
  const __m256i even = bit_copy<__m256i>(value.first);
  const __m256i odd = bit_copy<__m256i>(value.second);
  constexpr int kOdd = 0xaa;
  const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, kOdd);
  const __m256i lower = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), kOdd);
  // The carry of lower + 0x7fff + (upper & 1) is bit 15 of the rounded-up average.
  const __m256i rounding =
      _mm256_or_si256(_mm256_and_si256(upper, _mm256_set1_epi16(1)), _mm256_set1_epi16(0x7ffe));
  const __m256i carry = _mm256_srli_epi16(_mm256_avg_epu16(lower, rounding), 15);
  return _mm256_add_epi16(upper, carry);
}

// table[index[i] % 16]
MEMBOUND_ALWAYS_INLINE F32 look_up(const float (&table)[16], I32 index) {
  const __m256i lanes = bit_copy<__m256i>(index);
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), lanes),
                          _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), lanes),
                          _mm256_castsi256_ps(_mm256_slli_epi32(lanes, 28)));
}
template <class Mask>
MEMBOUND_ALWAYS_INLINE bool is_any(Mask mask) {
  return _mm256_movemask_epi8(bit_copy<__m256i>(mask)) != 0;
}

// Splits a sequence into its even and its odd elements.
MEMBOUND_ALWAYS_INLINE __m256 in_order(__m256 value) {
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(value), _MM_SHUFFLE(3, 1, 2, 0)));
}
MEMBOUND_ALWAYS_INLINE Pair<F32> deinterleave(Pair<F32> value) {
  return {in_order(_mm256_shuffle_ps(value.first, value.second, _MM_SHUFFLE(2, 0, 2, 0))),
          in_order(_mm256_shuffle_ps(value.first, value.second, _MM_SHUFFLE(3, 1, 3, 1)))};
}

// Adds half to half, down to one element.
MEMBOUND_ALWAYS_INLINE float horizontal_sum(F32 value) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEMBOUND_ALWAYS_INLINE double horizontal_sum(F64 value) {
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(value), _mm256_extractf128_pd(value, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// A non-temporal store. `to` must be aligned to the vector.
template <class V>
MEMBOUND_ALWAYS_INLINE void stream(void* to, V value) {
  _mm256_stream_si256(static_cast<__m256i*>(to), bit_copy<__m256i>(value));
}
MEMBOUND_ALWAYS_INLINE void stream_fence() { _mm_sfence(); }

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
