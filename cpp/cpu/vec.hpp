// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/numeric.hpp"

// Vectors for the units per instruction set (cpu/kernels/*.cpp, compiled with MEMBOUND_CPU_ISA
// set). Everything is internal to the unit and no std:: header with inline functions comes in: the
// linker could keep a copy compiled for AVX-512 for a CPU without it.
//
// A row is read in steps of two vectors of the accumulate type (Pair). For bfloat16 the two hold
// the even and the odd elements, which one shift and one mask yield; for the rest they hold the
// first and the second half.
#define MEMBOUND_ALWAYS_INLINE inline __attribute__((always_inline))
#define MEMBOUND_INLINED __attribute__((always_inline))  // behind the arguments of a lambda

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

// At any alignment.
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

// Each brings: multiply_add, at_least and at_most (value, or the bound where it is beyond; a NaN in
// value stays), HalfRowF32 (the vector in which rows of float16 are computed),
// load_halves, narrow_halves, round_to_half, deinterleave, horizontal_sum, stream, stream_fence;
// AVX2 and AVX-512 also pack_bfloat16.
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

// To the nearest, ties to even, as bits in the upper half. A NaN stays one because its lower half
// is zero: it comes from a bfloat16 or is the hardware's own, and prepared weights hold no other.
MEMBOUND_ALWAYS_INLINE U32 round_to_bfloat16(F32 value) {
  const U32 bits = bit_copy<U32>(value);
  return bits + 0x7fffu + ((bits >> 16) & 1u);
}

#if !defined(__AVX2__)
// Even and odd elements back in sequence.
MEMBOUND_ALWAYS_INLINE U32 pack_bfloat16(Pair<F32> value) {
  return (round_to_bfloat16(value.first) >> 16) | (round_to_bfloat16(value.second) & 0xffff0000u);
}
#endif

// How rows of T are read and written. step elements make a Pair.
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
  static MEMBOUND_ALWAYS_INLINE void write_around_cache(BFloat16* to, Pair<V> value) {
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
  static MEMBOUND_ALWAYS_INLINE void write_around_cache(Float16* to, Pair<V> value) {
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
  static MEMBOUND_ALWAYS_INLINE void write_around_cache(T* to, Pair<V> value) {
    stream(to, value.first);
    stream(to + kStep / 2, value.second);
  }
};
template <>
struct Lanes<float> : PlainLanes<float, F32> {};
template <>
struct Lanes<double> : PlainLanes<double, F64> {};

// A whole step.
template <bool kAroundCache, class T>
MEMBOUND_ALWAYS_INLINE void write_step(T* to, Pair<typename Lanes<T>::V> value) {
  if constexpr (kAroundCache) {
    Lanes<T>::write_around_cache(to, value);
  } else {
    Lanes<T>::write(to, value);
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
