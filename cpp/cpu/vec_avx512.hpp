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
