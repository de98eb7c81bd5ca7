// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <immintrin.h>

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

MEMBOUND_ALWAYS_INLINE Pair<F32> load_halves(const void* from) {
  const auto* halves = static_cast<const __m256i*>(from);
  return {_mm512_cvtph_ps(_mm256_loadu_si256(halves)),
          _mm512_cvtph_ps(_mm256_loadu_si256(halves + 1))};
}
MEMBOUND_ALWAYS_INLINE __m256i narrow_half(F32 value) {
  return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
MEMBOUND_ALWAYS_INLINE __m512i narrow_halves(Pair<F32> value) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(narrow_half(value.first)),
                            narrow_half(value.second), 1);
}
MEMBOUND_ALWAYS_INLINE F32 round_to_half(F32 value) { return _mm512_cvtph_ps(narrow_half(value)); }

// Even and odd elements to bfloat16 in sequence, to the nearest, ties to even: 6 operations on the
// 16-bit halves, where rounding in 32 bits and merging takes 10 (7 % of the time in cache).
MEMBOUND_ALWAYS_INLINE __m512i pack_bfloat16(Pair<F32> value) {
  const __m512i even = bit_copy<__m512i>(value.first);
  const __m512i odd = bit_copy<__m512i>(value.second);
  const __m512i lower_of =
      _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44,
                       12, 42, 10, 40, 8, 38, 6, 36, 4, 34, 2, 32, 0);
  const __m512i one = _mm512_set1_epi16(1);
  const __m512i lower = _mm512_permutex2var_epi16(even, lower_of, odd);
  const __m512i upper = _mm512_permutex2var_epi16(even, _mm512_add_epi16(lower_of, one), odd);
  // Up when the lower half is above a half, or is a half and the upper one odd.
  const __m512i tie = _mm512_adds_epu16(lower, _mm512_and_si512(upper, one));
  const __mmask32 up = _mm512_cmpgt_epu16_mask(tie, _mm512_set1_epi16(-0x8000));
  return _mm512_mask_add_epi16(upper, up, upper, one);
}

// Halves of a sequence to its even and its odd elements.
MEMBOUND_ALWAYS_INLINE Pair<F32> deinterleave(Pair<F32> value) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(value.first, even, value.second),
          _mm512_permutex2var_ps(value.first, odd, value.second)};
}

// Halves onto halves, down to one.
MEMBOUND_ALWAYS_INLINE float horizontal_sum(F32 value) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
MEMBOUND_ALWAYS_INLINE double horizontal_sum(F64 value) {
  const __m256d four =
      _mm256_add_pd(_mm512_castpd512_pd256(value), _mm512_extractf64x4_pd(value, 1));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

// A store that does not bring the line into the cache. `to` is a multiple of the vector's size.
template <class V>
MEMBOUND_ALWAYS_INLINE void stream(void* to, V value) {
  _mm512_stream_si512(static_cast<__m512i*>(to), bit_copy<__m512i>(value));
}
MEMBOUND_ALWAYS_INLINE void stream_fence() { _mm_sfence(); }

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
