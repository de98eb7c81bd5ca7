// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/gated_activation.hpp"
#include "cpu/row.hpp"

// What the forward and the backward of gated activations do alike with a row.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// What the gate is multiplied by, but for the scale of the row; 1 without up.
template <class T, bool kPlain>
struct UpRow {
  using A = typename Lanes<T>::A;
  using V = typename Lanes<T>::V;
  const ActivationNumbers* numbers;
  const T* up;

  MEMBOUND_ALWAYS_INLINE Pair<V> read(std::int64_t col) const {
    if (!kPlain && up == nullptr) return {V{} + 1, V{} + 1};
    return Lanes<T>::read(up + col);
  }
  MEMBOUND_ALWAYS_INLINE V factor(V value) const {
    if (kPlain || up == nullptr) return value;
    const V limit = V{} + static_cast<A>(numbers->limit);
    return at_most(at_least(value, -limit), limit) + static_cast<A>(numbers->up_offset);
  }
};

template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A row_scale_of(const void* row_scale, std::int64_t stride,
                                                         std::int64_t row) {
  using A = typename Lanes<T>::A;
  return row_scale == nullptr ? A{1} : static_cast<const A*>(row_scale)[row * stride];
}

// `count` elements, up to a step, from one place to another, as far as both are there.
template <class T>
MEMBOUND_ALWAYS_INLINE void copy_some(const T* from, T* to, std::int64_t count) {
  if (from != nullptr && to != nullptr) __builtin_memcpy(to, from, count * sizeof(T));
}

// Elements before the first where a store around the cache may go.
template <class T>
MEMBOUND_ALWAYS_INLINE std::int64_t to_boundary(const T* out) {
  constexpr std::uintptr_t kStepBytes = Lanes<T>::kStep * sizeof(T);
  constexpr std::uintptr_t kBoundary = kStepBytes < kVectorBytes ? kStepBytes : kVectorBytes;
  const std::uintptr_t behind = reinterpret_cast<std::uintptr_t>(out) % kBoundary;
  return static_cast<std::int64_t>((kBoundary - behind) % kBoundary / sizeof(T));
}

// An array of a row, or a block of it, as neighbours: where they are, or in `copy`. Null stays.
template <class T>
MEMBOUND_ALWAYS_INLINE const T* neighbours(const T* row, std::int64_t stride, std::int64_t first,
                                           std::int64_t count, T* copy) {
  return row == nullptr ? nullptr : gather(row, stride, first, count, copy);
}
// Where such an array is written, and its way from there.
template <class T>
MEMBOUND_ALWAYS_INLINE T* to_neighbours(T* row, std::int64_t stride, std::int64_t first, T* copy) {
  return row == nullptr ? nullptr : stride == 1 ? row + first : copy;
}
template <class T>
MEMBOUND_ALWAYS_INLINE void spread(T* row, std::int64_t stride, std::int64_t first,
                                   std::int64_t count, const T* from) {
  if (row != nullptr && stride != 1) scatter(row, stride, first, count, from);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
