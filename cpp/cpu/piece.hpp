// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/vec.hpp"

// Less than a step of a row: read, kept, written. Narrow rows are nothing else (rms_norm of 4096 x
// 7 float32, by memcpy to and from a padded step: 190 us, so: 30).
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Which element of a step stands where in a Pair.
template <class T>
struct Places {
  typename Lanes<T>::A at[Lanes<T>::kStep];
  constexpr Places() : at() {
    constexpr int kHalf = Lanes<T>::kStep / 2;
    for (int i = 0; i < Lanes<T>::kStep; ++i)
      at[i] = Lanes<T>::kEvenOdd ? 2 * (i % kHalf) + i / kHalf : i;
  }
};
template <class T>
constexpr Places<T> kPlaces;

// The first `count` elements, `otherwise` behind them.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> first_of_step(
    Pair<typename Lanes<T>::V> value, std::int64_t count, typename Lanes<T>::A otherwise = 0) {
  using V = typename Lanes<T>::V;
  const auto place = load_pair<V>(kPlaces<T>.at);
  const V end = V{} + static_cast<typename Lanes<T>::A>(count), rest = V{} + otherwise;
  return {place.first < end ? value.first : rest, place.second < end ? value.second : rest};
}

// Fewer bytes than a vector has, by two pieces of a power of two that overlap.
template <int kPiece = kVectorBytes / 2>
MEMBOUND_ALWAYS_INLINE void copy_few_bytes(const char* from, char* to, std::int64_t bytes) {
  if constexpr (kPiece > 0) {
    if (bytes < kPiece) return copy_few_bytes<kPiece / 2>(from, to, bytes);
    struct Piece {
      char bytes[kPiece];
    };
    const auto first = load<Piece>(from), last = load<Piece>(from + bytes - kPiece);
    store(to, first);
    store(to + bytes - kPiece, last);
  }
}

#if defined(__AVX512BW__)
// Masks, as what is stored in pieces has to be waited for when it is loaded as a whole.
template <class V>
struct SomeBytes {
  static constexpr std::int64_t kAll = sizeof(V);
  std::uint64_t mask;

  // Of `bytes`, as many as a V has; none where there are fewer than 1.
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
// `count` elements, up to a step.
template <class T>
[[gnu::noinline]] void copy_piece(T* to, const T* from, std::int64_t count) {
  const auto piece = [&]<int kCount>() MEMBOUND_INLINED {
    if constexpr (kCount <= Lanes<T>::kStep) {
      if ((count & kCount) == 0) return;
      __builtin_memcpy(to, from, kCount * sizeof(T));
      to += kCount;
      from += kCount;
    }
  };
  piece.template operator()<16>();
  piece.template operator()<8>();
  piece.template operator()<4>();
  piece.template operator()<2>();
  piece.template operator()<1>();
}
#endif

// Fewer bytes than a V has, zeros behind them.
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

// The first `count` elements of a step, zeros behind them.
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
  copy_piece(padded, from, count);
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
  copy_piece(to, padded, count);
#endif
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
