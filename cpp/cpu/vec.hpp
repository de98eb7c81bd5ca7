// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

// Vectors for the units per instruction set (cpu/kernels/*.cpp, one MEMBOUND_CPU_ISA each). All is
// internal to the unit, and no std:: header with inline functions may be included: the linker could
// keep an AVX-512 copy for a CPU without it. A row is read in steps of two vectors of the
// accumulate type (Pair): for bfloat16 the even and the odd elements, which one shift and one mask
// yield, otherwise the first and the second half.
#define MEMBOUND_ALWAYS_INLINE inline __attribute__((always_inline))
#define MEMBOUND_INLINED __attribute__((always_inline))  // goes after the parameters of a lambda

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef float F32 __attribute__((vector_size(kVectorBytes)));
typedef double F64 __attribute__((vector_size(kVectorBytes)));
typedef std::uint16_t U16 __attribute__((vector_size(kVectorBytes)));
typedef std::uint32_t U32 __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t I32 __attribute__((vector_size(kVectorBytes)));

template <class V>
struct Pair {
  V first, second;
};

template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> product(Pair<V> a, Pair<V> b) {
  return {a.first * b.first, a.second * b.second};
}

template <class To, class From>
MEMBOUND_ALWAYS_INLINE To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

// Unaligned.
template <class V>
MEMBOUND_ALWAYS_INLINE V load(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <class V>
MEMBOUND_ALWAYS_INLINE void store(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}
template <class V, class A>
MEMBOUND_ALWAYS_INLINE Pair<V> load_pair(const A* from) {
  return {load<V>(from), load<V>(from + sizeof(V) / sizeof(A))};
}
template <class V, class A>
MEMBOUND_ALWAYS_INLINE void store_pair(A* to, Pair<V> value) {
  store(to, value.first);
  store(to + sizeof(V) / sizeof(A), value.second);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA

// Each header defines multiply_add, at_least and at_most (clamps that keep a NaN in value),
// HalfRowF32 (the vector that float16 rows are computed in), load_halves, narrow_halves,
// round_to_half, deinterleave, horizontal_sum, stream, stream_fence; AVX2 and AVX-512 also
// pack_bfloat16, look_up and is_any.
#if defined(__AVX512F__)
#include "cpu/vec_avx512.hpp"
#elif defined(__AVX2__)
#include "cpu/vec_avx2.hpp"
#elif defined(__aarch64__)
#include "cpu/vec_neon.hpp"
#else
#include "cpu/vec_baseline.hpp"
#endif

namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Rounds to nearest even; the result is in the upper half. A NaN survives because its lower half is
// zero: it comes from a bfloat16 or the hardware, and prepared weights hold no other.
MEMBOUND_ALWAYS_INLINE U32 round_to_bfloat16(F32 value) {
  const U32 bits = bit_copy<U32>(value);
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

#if !defined(__AVX2__)
// Merges even and odd elements back into sequence.
MEMBOUND_ALWAYS_INLINE U32 pack_bfloat16(Pair<F32> value) {
  return (round_to_bfloat16(value.first) >> 16) | (round_to_bfloat16(value.second) & 0xffff0000u);
}
// table[index[i] % 16]
MEMBOUND_ALWAYS_INLINE F32 look_up(const float (&table)[16], I32 index) {
  return F32{table[index[0] & 15], table[index[1] & 15], table[index[2] & 15],
             table[index[3] & 15]};
}
template <class Mask>
MEMBOUND_ALWAYS_INLINE bool is_any(Mask mask) {
  std::uint64_t words[sizeof(Mask) / 8], all = 0;
  __builtin_memcpy(words, &mask, sizeof(Mask));
  for (std::uint64_t word : words) all |= word;
  return all != 0;
}
#endif

// How rows of T are read and written. A Pair holds kStep elements.
template <class T>
struct Lanes;

template <>
struct Lanes<BFloat16> {
  using A = float;
  using V = F32;
  static constexpr int kStep = kVectorBytes / 2;
  static constexpr bool kEvenOdd = true;
  static MEMBOUND_ALWAYS_INLINE Pair<V> read(const BFloat16* from) {
    const U32 bits = load<U32>(from);
    return {bit_copy<F32>(bits << 16), bit_copy<F32>(bits & 0xffff0000u)};
  }
  static MEMBOUND_ALWAYS_INLINE void write(BFloat16* to, Pair<V> value) {
    store(to, pack_bfloat16(value));
  }
  static MEMBOUND_ALWAYS_INLINE void write_non_temporal(BFloat16* to, Pair<V> value) {
    stream(to, pack_bfloat16(value));
  }
  static MEMBOUND_ALWAYS_INLINE Pair<V> round(Pair<V> value) {
    return {bit_copy<F32>(round_to_bfloat16(value.first) & 0xffff0000u),
            bit_copy<F32>(round_to_bfloat16(value.second) & 0xffff0000u)};
  }
};

template <>
struct Lanes<Float16> {
  using A = float;
  using V = HalfRowF32;
  static constexpr int kStep = sizeof(V) / 2;
  static constexpr bool kEvenOdd = false;
  static MEMBOUND_ALWAYS_INLINE Pair<V> read(const Float16* from) { return load_halves<V>(from); }
  static MEMBOUND_ALWAYS_INLINE void write(Float16* to, Pair<V> value) {
    store(to, narrow_halves(value));
  }
  static MEMBOUND_ALWAYS_INLINE void write_non_temporal(Float16* to, Pair<V> value) {
    stream(to, narrow_halves(value));
  }
  static MEMBOUND_ALWAYS_INLINE Pair<V> round(Pair<V> value) {
    return {round_to_half(value.first), round_to_half(value.second)};
  }
};

template <class T, class Vector>
struct PlainLanes {
  using A = T;
  using V = Vector;
  static constexpr int kStep = 2 * kVectorBytes / sizeof(T);
  static constexpr bool kEvenOdd = false;
  static MEMBOUND_ALWAYS_INLINE Pair<V> read(const T* from) {
    return {load<V>(from), load<V>(from + kStep / 2)};
  }
  static MEMBOUND_ALWAYS_INLINE void write(T* to, Pair<V> value) {
    store(to, value.first);
    store(to + kStep / 2, value.second);
  }
  static MEMBOUND_ALWAYS_INLINE void write_non_temporal(T* to, Pair<V> value) {
    stream(to, value.first);
    stream(to + kStep / 2, value.second);
  }
};
template <>
struct Lanes<float> : PlainLanes<float, F32> {};
template <>
struct Lanes<double> : PlainLanes<double, F64> {};

// Writes a whole step.
template <bool kNonTemporal, class T>
MEMBOUND_ALWAYS_INLINE void write_step(T* to, Pair<typename Lanes<T>::V> value) {
  if constexpr (kNonTemporal) {
    Lanes<T>::write_non_temporal(to, value);
  } else {
    Lanes<T>::write(to, value);
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
