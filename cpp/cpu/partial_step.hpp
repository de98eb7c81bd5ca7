// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

// Reads, copies and writes of less than a step, which is all there is to narrow rows. Masked or
// register-sized moves avoid a round trip through a padded step by memcpy.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The index of each element of a step within its Pair.
template <class T>
struct StepIndices {
  typename Lanes<T>::A at[Lanes<T>::kStep];
  constexpr StepIndices() : at() {
    constexpr int kHalf = Lanes<T>::kStep / 2;
    for (int i = 0; i < Lanes<T>::kStep; ++i)
      at[i] = Lanes<T>::kEvenOdd ? 2 * (i % kHalf) + i / kHalf : i;
  }
};
template <class T>
constexpr StepIndices<T> kIndices;

// The first `count` elements of a step; `otherwise` in the rest.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> first_of_step(
    Pair<typename Lanes<T>::V> value, std::int64_t count, typename Lanes<T>::A otherwise = 0) {
  using V = typename Lanes<T>::V;
  const auto index = load_pair<V>(kIndices<T>.at);
  const V end = V{} + static_cast<typename Lanes<T>::A>(count), rest = V{} + otherwise;
  return {index.first < end ? value.first : rest, index.second < end ? value.second : rest};
}

// Copies fewer bytes than a vector holds, by two overlapping moves whose size is a power of two.
template <int kSegment = kVectorBytes / 2>
MEMBOUND_ALWAYS_INLINE void copy_few_bytes(const char* from, char* to, std::int64_t bytes) {
  if constexpr (kSegment > 0) {
    if (bytes < kSegment) return copy_few_bytes<kSegment / 2>(from, to, bytes);
    struct Part {
      char bytes[kSegment];
    };
    const auto first = load<Part>(from), last = load<Part>(from + bytes - kSegment);
    store(to, first);
    store(to + bytes - kSegment, last);
  }
}

#if defined(__AVX512BW__)
// Masked moves: bytes that were stored by several stores stall a load of the whole vector.
template <class V>
struct SomeBytes {
  static constexpr std::int64_t kAll = sizeof(V);
  std::uint64_t mask;

  // The first `bytes` bytes of a V: at most all, none if `bytes` is below 1.
  MEMBOUND_ALWAYS_INLINE explicit SomeBytes(std::int64_t bytes) {
    const std::int64_t some = bytes < 0 ? 0 : bytes < kAll ? bytes : kAll;
    mask = some < 64 ? (std::uint64_t{1} << some) - 1 : ~std::uint64_t{0};
  }
  MEMBOUND_ALWAYS_INLINE V load(const void* from) const {
    if constexpr (kAll == 64)
      return bit_copy<V>(_mm512_maskz_loadu_epi8(mask, from));
    else
      return bit_copy<V>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from));
  }
  template <class Value>
  MEMBOUND_ALWAYS_INLINE void store(void* to, Value value) const {
    if constexpr (kAll == 64)
      _mm512_mask_storeu_epi8(to, mask, bit_copy<__m512i>(value));
    else
      _mm256_mask_storeu_epi8(to, static_cast<__mmask32>(mask), bit_copy<__m256i>(value));
  }
};
#else
// Copies `count` elements, at most a step.
template <class T>
[[gnu::noinline]] void copy_elements_below_step(T* to, const T* from, std::int64_t count) {
  const auto copy = [&]<int kCount>() MEMBOUND_INLINED {
    if constexpr (kCount <= Lanes<T>::kStep) {
      if ((count & kCount) == 0) return;
      __builtin_memcpy(to, from, kCount * sizeof(T));
      to += kCount;
      from += kCount;
    }
  };
  copy.template operator()<16>();
  copy.template operator()<8>();
  copy.template operator()<4>();
  copy.template operator()<2>();
  copy.template operator()<1>();
}
#endif

// Loads fewer bytes than a V has and sets the rest to zero.
template <class V>
MEMBOUND_ALWAYS_INLINE V load_bytes(const void* from, std::int64_t bytes) {
#if defined(__AVX512BW__)
  return SomeBytes<V>(bytes).load(from);
#else
  V value = {};
  copy_few_bytes(static_cast<const char*>(from), reinterpret_cast<char*>(&value), bytes);
  return value;
#endif
}

// Reads the first `count` elements of a step and sets the rest to zero.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> read_partial(const T* from, std::int64_t count) {
#if defined(__AVX512BW__)
  using V = typename Lanes<T>::V;
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  if constexpr (Lanes<T>::kEvenOdd) {
    const U32 both = SomeBytes<U32>(bytes).load(from);
    return {bit_copy<V>(both << 16), bit_copy<V>(both & 0xffff0000u)};
  } else if constexpr (sizeof(T) == 2) {
    const auto halves = SomeBytes<HalfRowF32>(bytes).load(from);
    return load_halves<V>(&halves);
  } else {
    constexpr std::int64_t kHalf = sizeof(V);
    return {SomeBytes<V>(bytes).load(from),
            SomeBytes<V>(bytes - kHalf).load(from + kHalf / sizeof(T))};
  }
#else
  T padded[Lanes<T>::kStep] = {};
  copy_elements_below_step(padded, from, count);
  return Lanes<T>::read(padded);
#endif
}
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> read_some(const T* from, std::int64_t count) {
  return count == Lanes<T>::kStep ? Lanes<T>::read(from) : read_partial(from, count);
}
template <class T>
MEMBOUND_ALWAYS_INLINE void write_partial(T* to, Pair<typename Lanes<T>::V> value,
                                          std::int64_t count) {
#if defined(__AVX512BW__)
  using V = typename Lanes<T>::V;
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  if constexpr (Lanes<T>::kEvenOdd) {
    SomeBytes<U32>(bytes).store(to, pack_bfloat16(value));
  } else if constexpr (sizeof(T) == 2) {
    SomeBytes<HalfRowF32>(bytes).store(to, narrow_halves(value));
  } else {
    constexpr std::int64_t kHalf = sizeof(V);
    SomeBytes<V>(bytes).store(to, value.first);
    if (bytes > kHalf) SomeBytes<V>(bytes - kHalf).store(to + kHalf / sizeof(T), value.second);
  }
#else
  T padded[Lanes<T>::kStep];
  Lanes<T>::write(padded, value);
  copy_elements_below_step(to, padded, count);
#endif
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
