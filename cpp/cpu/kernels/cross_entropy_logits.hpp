// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/logits.hpp"
#include "cpu/tanh.hpp"

// Logits with a soft cap, and the sum of logits.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// softcap * tanh(x / softcap), from a row itself.
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

// The terms of the sum of logits.
template <class T, class Logits>
struct LogitTerms {
  static constexpr int kSums = 1, kProducts = 0;
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  Logits logits;

  MEMBOUND_ALWAYS_INLINE void whole(std::int64_t col, Factors<V>* term) const {
    term->left = logits.whole(col);
  }
  MEMBOUND_ALWAYS_INLINE void partial(std::int64_t col, std::int64_t count,
                                      Factors<V>* term) const {
    term->left = first_of_step<T>(logits.partial(col, count), count, A{0});
  }
};
template <class T, class Logits>
[[gnu::noinline]] typename Lanes<T>::A sum_of_logits(const Logits& logits, std::int64_t count) {
  typename Lanes<T>::A sum;
  sums_of_block<T>(LogitTerms<T, Logits>{logits}, 0, count, &sum);
  return sum;
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
