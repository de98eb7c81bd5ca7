// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "reference.hpp"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace membound_bench {

namespace {

#if defined(__x86_64__)
// Two vectors per step, which suffice for a loop that only moves memory.
#define MEMBOUND_LOOP(bytes_per_step, value_at)                   \
  for (std::size_t i = 0; i < bytes; i += 2 * (bytes_per_step)) { \
    const auto first = value_at(i);                               \
    const auto second = value_at(i + (bytes_per_step));           \
    non_temporal ? stream(to + i, first) : store(to + i, first);  \
    non_temporal ? stream(to + i + (bytes_per_step), second)      \
                 : store(to + i + (bytes_per_step), second);      \
  }                                                               \
  if (non_temporal) _mm_sfence();

#pragma GCC push_options
#pragma GCC target("avx512f")
namespace wide {
__m512i load(const char* from) { return _mm512_loadu_si512(from); }
__m512i added(const char* a, const char* b) {
  return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(load(b)), _mm512_set1_ps(3.0f),
                                             _mm512_castsi512_ps(load(a))));
}
void store(char* to, __m512i value) { _mm512_storeu_si512(to, value); }
void stream(char* to, __m512i value) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), value); }
template <bool non_temporal>
void copy(char* to, const char* from, std::size_t bytes) {
  const auto at = [&](std::size_t i) { return load(from + i); };
  MEMBOUND_LOOP(64, at)
}
template <bool non_temporal>
void triad(char* to, const char* a, const char* b, std::size_t bytes) {
  const auto at = [&](std::size_t i) { return added(a + i, b + i); };
  MEMBOUND_LOOP(64, at)
}
}  // namespace wide
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace narrow {
__m256i load(const char* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}
__m256i added(const char* a, const char* b) {
  return _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(load(b)), _mm256_set1_ps(3.0f),
                                             _mm256_castsi256_ps(load(a))));
}
void store(char* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
void stream(char* to, __m256i value) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), value); }
template <bool non_temporal>
void copy(char* to, const char* from, std::size_t bytes) {
  const auto at = [&](std::size_t i) { return load(from + i); };
  MEMBOUND_LOOP(32, at)
}
template <bool non_temporal>
void triad(char* to, const char* a, const char* b, std::size_t bytes) {
  const auto at = [&](std::size_t i) { return added(a + i, b + i); };
  MEMBOUND_LOOP(32, at)
}
}  // namespace narrow
#pragma GCC pop_options
#undef MEMBOUND_LOOP
#endif

}  // namespace

void copy(void* to, const void* from, std::size_t bytes, bool non_temporal) {
#if defined(__x86_64__)
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  if (__builtin_cpu_supports("avx512f")) {
    return non_temporal ? wide::copy<true>(target, source, bytes)
                        : wide::copy<false>(target, source, bytes);
  }
  if (__builtin_cpu_supports("avx2")) {
    return non_temporal ? narrow::copy<true>(target, source, bytes)
                        : narrow::copy<false>(target, source, bytes);
  }
#endif
  std::memcpy(to, from, bytes);
}

void triad(void* to, const void* a, const void* b, std::size_t bytes, bool non_temporal) {
#if defined(__x86_64__)
  auto* target = static_cast<char*>(to);
  const auto* first = static_cast<const char*>(a);
  const auto* second = static_cast<const char*>(b);
  if (__builtin_cpu_supports("avx512f")) {
    return non_temporal ? wide::triad<true>(target, first, second, bytes)
                        : wide::triad<false>(target, first, second, bytes);
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return non_temporal ? narrow::triad<true>(target, first, second, bytes)
                        : narrow::triad<false>(target, first, second, bytes);
  }
#endif
  auto* sums = static_cast<float*>(to);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) {
    sums[i] = static_cast<const float*>(a)[i] + 3.0f * static_cast<const float*>(b)[i];
  }
}

}  // namespace membound_bench
