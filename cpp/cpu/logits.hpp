// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/exponential.hpp"
#include "cpu/widen.hpp"

// The largest of a row of logits, and their exponentials with the sum of these.
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
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> first_of_step(Pair<typename Lanes<T>::V> value,
                                                                std::int64_t count,
                                                                typename Lanes<T>::A otherwise) {
  using V = typename Lanes<T>::V;
  const auto place = load_pair<V>(kPlaces<T>.at);
  const V end = V{} + static_cast<typename Lanes<T>::A>(count), rest = V{} + otherwise;
  return {place.first < end ? value.first : rest, place.second < end ? value.second : rest};
}

// `count` elements, fewer than a step. Without a call, which would cost more than the copy.
template <class T>
MEMBOUND_ALWAYS_INLINE void copy_piece(T* to, const T* from, std::int64_t count) {
  const auto piece = [&]<int kCount>() MEMBOUND_INLINED {
    if constexpr (kCount < Lanes<T>::kStep) {
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
#if defined(__AVX512BW__)
// `bytes` of a register, zeros behind them; none where there are fewer than 1.
template <class V>
MEMBOUND_ALWAYS_INLINE V load_bytes(const void* from, std::int64_t bytes) {
  constexpr std::int64_t kAll = sizeof(V);
  const std::int64_t some = bytes < 0 ? 0 : bytes < kAll ? bytes : kAll;
  const std::uint64_t mask = some < 64 ? (std::uint64_t{1} << some) - 1 : ~std::uint64_t{0};
  if constexpr (kAll == 64)
    return bit_copy<V>(_mm512_maskz_loadu_epi8(mask, from));
  else
    return bit_copy<V>(_mm256_maskz_loadu_epi8(static_cast<__mmask32>(mask), from));
}
#endif
// The first `count` elements of a step, zeros behind them.
template <class T>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> read_piece(const T* from, std::int64_t count) {
#if defined(__AVX512BW__)
  // By masks: what is stored in pieces has to be waited for when it is loaded as a whole.
  using V = typename Lanes<T>::V;
  const std::int64_t bytes = count * static_cast<std::int64_t>(sizeof(T));
  if constexpr (Lanes<T>::kEvenOdd) {
    const U32 both = load_bytes<U32>(from, bytes);
    return {bit_copy<V>(both << 16), bit_copy<V>(both & 0xffff0000u)};
  } else if constexpr (sizeof(T) == 2) {
    const auto halves = load_bytes<HalfRowF32>(from, bytes);
    return load_halves<V>(&halves);
  } else {
    constexpr std::int64_t kHalf = sizeof(V);
    return {load_bytes<V>(from, bytes), load_bytes<V>(from + kHalf / sizeof(T), bytes - kHalf)};
  }
#else
  T padded[Lanes<T>::kStep] = {};
  copy_piece(padded, from, count);
  return Lanes<T>::read(padded);
#endif
}
template <class T>
MEMBOUND_ALWAYS_INLINE void write_piece(T* to, Pair<typename Lanes<T>::V> value,
                                        std::int64_t count) {
  T padded[Lanes<T>::kStep];
  Lanes<T>::write(padded, value);
  copy_piece(to, padded, count);
}

template <class A>
constexpr A kInfinity = static_cast<A>(__builtin_inf());

// Halves against halves, down to one.
template <class A, int kCount>
struct Largest {
  typedef A Half __attribute__((vector_size(kCount / 2 * sizeof(A))));
  struct Halves {
    Half lower, upper;
  };
  template <class V>
  static MEMBOUND_ALWAYS_INLINE A of(V value) {
    if constexpr (kCount == 2) {
      return value[0] > value[1] ? value[0] : value[1];
    } else {
      const auto halves = bit_copy<Halves>(value);
      return Largest<A, kCount / 2>::of(halves.lower > halves.upper ? halves.lower : halves.upper);
    }
  }
};
template <class A, class V>
MEMBOUND_ALWAYS_INLINE A horizontal_largest(V value) {
  return Largest<A, sizeof(V) / sizeof(A)>::of(value);
}

// scale * x, from a row itself.
template <class T>
struct PlainLogits {
  using V = typename Lanes<T>::V;
  const T* x;
  typename Lanes<T>::A scale;

  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    const auto value = Lanes<T>::read(x + col);
    return {value.first * scale, value.second * scale};
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t count) const {
    const auto value = read_piece(x + col, count);
    return first_of_step<T>({value.first * scale, value.second * scale}, count,
                            -kInfinity<typename Lanes<T>::A>);
  }
};

// From a buffer of whole steps, -infinity behind the last.
template <class T>
struct HeldLogits {
  using V = typename Lanes<T>::V;
  const typename Lanes<T>::A* logits;

  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    return load_pair<V>(logits + col);
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t) const {
    return whole(col);
  }
};

// NaN is passed over.
template <class T, class Logits>
[[gnu::noinline]] typename Lanes<T>::A largest_logit(const Logits& logits, std::int64_t count) {
  using V = typename Lanes<T>::V;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const V lowest = V{} - kInfinity<typename Lanes<T>::A>;
  Pair<V> top{lowest, lowest}, also = top;
  const auto join = [](Pair<V>& so_far, Pair<V> value) MEMBOUND_INLINED {
    so_far = {at_least(so_far.first, value.first), at_least(so_far.second, value.second)};
  };
  std::int64_t at = 0;
  for (; at + 2 * kStep <= count; at += 2 * kStep) {
    join(top, logits.whole(at));
    join(also, logits.whole(at + kStep));
  }
  for (; at + kStep <= count; at += kStep) join(top, logits.whole(at));
  if (at < count) join(also, logits.partial(at, count - at));
  join(top, also);
  return horizontal_largest<typename Lanes<T>::A>(at_least(top.first, top.second));
}

// 2^kPowerShift * exp(l - top) for l up to about top; 0, or too little to matter beside the largest
// one, from -Exponential::kLowest below it. So large, what is a subnormal number at last is none
// yet.
template <class A>
constexpr int kPowerShift = -Exponential<A>::kShift;
template <class A, class V>
MEMBOUND_ALWAYS_INLINE V power_of_logit(V l, A top) {
  const V below = at_most(top - l, V{} - Exponential<A>::kLowest);
  const auto [growth, power] = power_of_minus<A, kPowerShift<A>>(below, NoRest{});
  return multiply_add(growth, power, power);
}

// The terms of the sum of powers; each stays in `kept` too, whole steps of them, where that is
// wanted.
template <class T, class Logits>
struct Powers {
  static constexpr int kSums = 1, kProducts = 0;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Logits logits;
  A top;
  A* kept;

  MEMBOUND_ALWAYS_INLINE Pair<V> of(Pair<V> l) const {
    return {power_of_logit<A>(l.first, top), power_of_logit<A>(l.second, top)};
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* term) const {
    term->left = of(logits.whole(col));
    if (kept != nullptr) store_pair(kept + col, term->left);
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* term) const {
    term->left = of(logits.partial(col, count));
    if (kept != nullptr) store_pair(kept + col, term->left);
  }
};
// Over at most a block.
template <class T, class Logits>
[[gnu::noinline]] typename Lanes<T>::A sum_of_powers(const Powers<T, Logits>& powers,
                                                     std::int64_t count) {
  typename Lanes<T>::A sum;
  sums_of_block<T>(powers, 0, count, &sum);
  return sum;
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
