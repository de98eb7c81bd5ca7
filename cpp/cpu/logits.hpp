// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/exponential.hpp"
#include "cpu/widen.hpp"

// The maximum of a row of logits, their exponentials, and the sum of these.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

template <class A>
constexpr A kInfinity = static_cast<A>(__builtin_inf());

// scale * x, read from the row.
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
    const auto value = read_partial(x + col, count);
    return first_of_step<T>({value.first * scale, value.second * scale}, count,
                            -kInfinity<typename Lanes<T>::A>);
  }
};

// Logits in a buffer of whole steps, padded with -infinity.
template <class T>
struct BufferedLogits {
  using V = typename Lanes<T>::V;
  const typename Lanes<T>::A* logits;

  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    return load_pair<V>(logits + col);
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t) const {
    return whole(col);
  }
};

// The maximum, ignoring NaN.
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

// 2^kPowerShift * exp(l - top). Logits more than -Exponential::kLowest below top give 0 or a number
// too small to matter in the sum. The scaling keeps results that end up subnormal normal until the
// end.
template <class A>
constexpr int kPowerShift = -Exponential<A>::kShift;
template <class A, class V>
MEMBOUND_ALWAYS_INLINE V power_of_logit(V l, A top) {
  const V below = at_most(top - l, V{} - Exponential<A>::kLowest);
  const auto [growth, power] = power_of_minus<A, kPowerShift<A>>(below, NoRest{});
  return multiply_add(growth, power, power);
}

// The terms of the sum of powers. Each is also stored in `stored`, in whole steps, unless that is
// null.
template <class T, class Logits>
struct Powers {
  static constexpr int kSums = 1, kProducts = 0;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Logits logits;
  A top;
  A* stored;

  MEMBOUND_ALWAYS_INLINE Pair<V> of(Pair<V> l) const {
    return {power_of_logit<A>(l.first, top), power_of_logit<A>(l.second, top)};
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* term) const {
    term->left = of(logits.whole(col));
    if (stored != nullptr) store_pair(stored + col, term->left);
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* term) const {
    term->left = of(logits.partial(col, count));
    if (stored != nullptr) store_pair(stored + col, term->left);
  }
};
// The sum over at most one block. later: elements read next, prefetched meanwhile; or null.
template <class T, class Logits>
[[gnu::noinline]] typename Lanes<T>::A sum_of_powers(const Powers<T, Logits>& powers,
                                                     std::int64_t count, const T* later = nullptr) {
  typename Lanes<T>::A sum;
  std::int64_t prefetched = 0;
  sums_of_block<T>(powers, 0, count, &sum, [&](std::int64_t col) MEMBOUND_INLINED {
    if (later != nullptr) prefetch_bytes<2>(later, prefetched, col * sizeof(T));
    prefetched = col * sizeof(T);
  });
  return sum;
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
