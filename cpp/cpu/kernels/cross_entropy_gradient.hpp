// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/logits.hpp"
#include "cpu/tanh.hpp"

// The gradient of a row of logits.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// Constants of a row: logit l has the gradient (factor * 2^kPowerShift * exp(l - top) - less) *
// slope, with `less` times the class weight if there are any. With an entropy's gradient,
// of_distance * (top - l) is added to factor.
template <class A>
struct GradientNumbers {
  A factor, less, at_label_less, top, cap, inverse_cap, of_distance;
  const A* class_weights;
};

template <class T, bool kCapped, bool kEntropy = false>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::V gradient(
    const GradientNumbers<typename Lanes<T>::A>& numbers, typename Lanes<T>::V x,
    typename Lanes<T>::V less) {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  V slope = V{} + 1;
  if constexpr (kCapped) {
    const Tanh<V> found = tanh_of<A>(x * numbers.inverse_cap);
    x = found.value * numbers.cap;
    slope = found.slope;
  }
  const V power = power_of_logit<A>(x, numbers.top);
  V factor = V{} + numbers.factor;
  if constexpr (kEntropy) {
    const V distance = at_most(numbers.top - x, V{} - Exponential<A>::kLowest);
    factor = multiply_add(distance, V{} + numbers.of_distance, factor);
  }
  const V dl = multiply_add(power, factor, -less);
  return kCapped ? dl * slope : dl;
}
// Writes columns from `first` on, as if none were the label's. kGeneral: there may be class weights
// and an entropy's gradient.
template <class T, bool kCapped, bool kGeneral>
[[gnu::noinline]] void write_gradients(const GradientNumbers<typename Lanes<T>::A>& given,
                                       const T* x, std::int64_t first, std::int64_t count, T* to,
                                       CacheHints hints) {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  const GradientNumbers<A> numbers = given;
  const auto of = [&](Pair<V> value, std::int64_t at) MEMBOUND_INLINED {
    Pair<V> less{V{} + numbers.less, V{} + numbers.less};
    if (kGeneral && numbers.class_weights != nullptr) {
      const Pair<V> weight = load_pair<V>(numbers.class_weights + first + at);
      less = {less.first * weight.first, less.second * weight.second};
    }
    return Pair<V>{gradient<T, kCapped, kGeneral>(numbers, value.first, less.first),
                   gradient<T, kCapped, kGeneral>(numbers, value.second, less.second)};
  };
  std::int64_t at = 0;
  for (; at + kStep <= count; at += kStep) {
    prefetch_ahead(x + at, kStep * sizeof(T), hints.prefetch_distance);
    const Pair<V> dx = of(Lanes<T>::read(x + at), at);
    hints.non_temporal ? Lanes<T>::write_non_temporal(to + at, dx) : Lanes<T>::write(to + at, dx);
  }
  if (at < count) write_partial(to + at, of(read_partial(x + at, count - at), at), count - at);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
