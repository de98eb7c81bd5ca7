// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arm_neon.h>

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

typedef F32 HalfRowF32;
MEMBOUND_ALWAYS_INLINE F32 multiply_add(F32 a, F32 b, F32 c) {
  return bit_copy<F32>(
      vfmaq_f32(bit_copy<float32x4_t>(c), bit_copy<float32x4_t>(a), bit_copy<float32x4_t>(b)));
}
MEMBOUND_ALWAYS_INLINE F64 multiply_add(F64 a, F64 b, F64 c) {
  return bit_copy<F64>(
      vfmaq_f64(bit_copy<float64x2_t>(c), bit_copy<float64x2_t>(a), bit_copy<float64x2_t>(b)));
}
MEMBOUND_ALWAYS_INLINE F32 at_least(F32 value, F32 bound) {
  return bit_copy<F32>(vmaxq_f32(bit_copy<float32x4_t>(bound), bit_copy<float32x4_t>(value)));
}
MEMBOUND_ALWAYS_INLINE F64 at_least(F64 value, F64 bound) {
  return bit_copy<F64>(vmaxq_f64(bit_copy<float64x2_t>(bound), bit_copy<float64x2_t>(value)));
}
MEMBOUND_ALWAYS_INLINE F32 at_most(F32 value, F32 bound) {
  return bit_copy<F32>(vminq_f32(bit_copy<float32x4_t>(bound), bit_copy<float32x4_t>(value)));
}
MEMBOUND_ALWAYS_INLINE F64 at_most(F64 value, F64 bound) {
  return bit_copy<F64>(vminq_f64(bit_copy<float64x2_t>(bound), bit_copy<float64x2_t>(value)));
}

template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> load_halves(const void* from) {
  const auto halves = bit_copy<float16x8_t>(load<U16>(from));
  return {bit_copy<F32>(vcvt_f32_f16(vget_low_f16(halves))),
          bit_copy<F32>(vcvt_high_f32_f16(halves))};
}
MEMBOUND_ALWAYS_INLINE float16x4_t narrow_half(F32 value) {
  return vcvt_f16_f32(bit_copy<float32x4_t>(value));
}
MEMBOUND_ALWAYS_INLINE U16 narrow_halves(Pair<F32> value) {
  return bit_copy<U16>(vcombine_f16(narrow_half(value.first), narrow_half(value.second)));
}
MEMBOUND_ALWAYS_INLINE F32 round_to_half(F32 value) {
  return bit_copy<F32>(vcvt_f32_f16(narrow_half(value)));
}

// Splits a sequence into its even and its odd elements.
MEMBOUND_ALWAYS_INLINE Pair<F32> deinterleave(Pair<F32> value) {
  const auto first = bit_copy<float32x4_t>(value.first);
  const auto second = bit_copy<float32x4_t>(value.second);
  return {bit_copy<F32>(vuzp1q_f32(first, second)), bit_copy<F32>(vuzp2q_f32(first, second))};
}

// Adds half to half, down to one element.
MEMBOUND_ALWAYS_INLINE float horizontal_sum(F32 value) {
  return (value[0] + value[2]) + (value[1] + value[3]);
}
MEMBOUND_ALWAYS_INLINE double horizontal_sum(F64 value) { return value[0] + value[1]; }

// The non-temporal stores of the architecture do not pay off; a plain one is right.
template <class V>
MEMBOUND_ALWAYS_INLINE void stream(void* to, V value) {
  store(to, value);
}
MEMBOUND_ALWAYS_INLINE void stream_fence() {}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
