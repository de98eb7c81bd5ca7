// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/logits.hpp"
#include "cpu/tanh.hpp"

// Logits with a soft cap, and sums of logits.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// softcap * tanh(x / softcap), read from the row.
template <class T>
struct CappedLogits {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  const T* x;
  A cap, inverse_cap;

  MEMBOUND_ALWAYS_INLINE Pair<V> of(Pair<V> value) const {
    return {tanh_of<A>(value.first * inverse_cap).value * cap,
            tanh_of<A>(value.second * inverse_cap).value * cap};
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> whole(std::int64_t col) const {
    return of(Lanes<T>::read(x + col));
  }
  MEMBOUND_ALWAYS_INLINE Pair<V> partial(std::int64_t col, std::int64_t count) const {
    return first_of_step<T>(of(read_partial(x + col, count)), count, -kInfinity<A>);
  }
};

// The terms of the sum of distances from the largest logit, times class weights if there are any.
// Unlike logits, distances keep their digits when all logits are large.
template <class T, class Logits>
struct DistanceTerms {
  static constexpr int kSums = 1, kProducts = 0;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Logits logits;
  A top;
  const A* class_weights;  // may be null

  MEMBOUND_ALWAYS_INLINE Pair<V> of(Pair<V> l, std::int64_t col) const {
    const Pair<V> distance{top - l.first, top - l.second};
    if (class_weights == nullptr) return distance;
    const Pair<V> weight = load_pair<V>(class_weights + col);  // padded to whole steps
    return {distance.first * weight.first, distance.second * weight.second};
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* term) const {
    term->left = of(logits.whole(col), col);
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* term) const {
    term->left = first_of_step<T>(of(logits.partial(col, count), col), count, A{0});
  }
};
// The terms of the sum of powers times distances from the largest logit. Logits of -infinity have
// none.
template <class T, class Logits>
struct EntropyTerms {
  static constexpr int kSums = 1, kProducts = 0;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Logits logits;
  A top;

  MEMBOUND_ALWAYS_INLINE V of(V l) const {
    return power_of_logit<A>(l, top) * at_most(top - l, V{} - Exponential<A>::kLowest);
  }
  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* term) const {
    const Pair<V> l = logits.whole(col);
    term->left = {of(l.first), of(l.second)};
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* term) const {
    const Pair<V> l = logits.partial(col, count);
    term->left = first_of_step<T>({of(l.first), of(l.second)}, count, A{0});
  }
};
template <class T, class Terms>
[[gnu::noinline]] typename Lanes<T>::A sum_of_terms(const Terms& terms, std::int64_t count) {
  typename Lanes<T>::A sum;
  sums_of_block<T>(terms, 0, count, &sum);
  return sum;
}

// `weights` is padded with zeros to a whole step.
template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A sum_of_class_weights(
    const typename Lanes<T>::A* weights, std::int64_t count) {
  using V = typename Lanes<T>::V;
  Pair<V> sum{};
  for (std::int64_t at = 0; at < count; at += Lanes<T>::kStep) {
    const Pair<V> more = load_pair<V>(weights + at);
    sum = {sum.first + more.first, sum.second + more.second};
  }
  return horizontal_sum(sum.first + sum.second);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
