// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/gated_activation.hpp"
#include "cpu/strided_tile.hpp"
#include "cpu/tanh.hpp"

// What the forward and the backward of gated activations share per row.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The factor of the activation: up, clamped or capped, plus its offset; 1 without up. The row scale
// is applied elsewhere.
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
    const V limit = V{} + static_cast<A>(numbers->limit),
            offset = V{} + static_cast<A>(numbers->up_offset);
    if (numbers->up_cap > 0) return capped(value).value * static_cast<A>(numbers->up_cap) + offset;
    return at_most(at_least(value, -limit), limit) + offset;
  }
  // The gradient of up, from that of the factor.
  MEMBOUND_ALWAYS_INLINE V slope(V value, V gradient) const {
    const V limit = V{} + static_cast<A>(numbers->limit);
    if (numbers->up_cap > 0) return gradient * capped(value).slope;
    return value > limit ? V{} : value < -limit ? V{} : gradient;
  }

 private:
  MEMBOUND_ALWAYS_INLINE Tanh<V> capped(V value) const {
    return tanh_of<A>(value / static_cast<A>(numbers->up_cap));
  }
};

template <class T>
MEMBOUND_ALWAYS_INLINE typename Lanes<T>::A row_scale_of(const void* row_scale, std::int64_t stride,
                                                         std::int64_t row) {
  using A = typename Lanes<T>::A;
  return row_scale == nullptr ? A{1} : static_cast<const A*>(row_scale)[row * stride];
}

// Calls body(first, count, row) for the rows of a tile, `first` being the offset in its copy.
// Without row scales one call covers the whole tile.
template <class Body>
MEMBOUND_ALWAYS_INLINE void each_row_of_tile(std::int64_t row, std::int64_t rows, std::int64_t cols,
                                             bool one_scale, Body body) {
  const std::int64_t together = one_scale ? rows : 1;
  for (std::int64_t r = 0; r < rows; r += together) body(r * cols, together * cols, row + r);
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
