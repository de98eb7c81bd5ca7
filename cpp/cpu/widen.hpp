// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/row.hpp"

// Conversion between rows of a run-time dtype and contiguous numbers.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

// The most elements converted at once.
constexpr std::int64_t kWidened = 256;

// Contiguous order needs its own code: Lanes<BFloat16> splits even and odd elements.
MEMBOUND_ALWAYS_INLINE void widen(const BFloat16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = bit_copy<float>(static_cast<std::uint32_t>(from[i].bits) << 16);
  }
}
MEMBOUND_ALWAYS_INLINE void narrow(const float* from, std::int64_t count, BFloat16* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = bit_copy<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    // any NaN: a float32 weight may hold it
    const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to[i].bits = static_cast<std::uint16_t>(is_nan ? bits >> 16 | 0x40u : rounded);
  }
}
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void widen(const T* from, std::int64_t count, A* to) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  std::int64_t at = 0;
  for (; at + kStep <= count; at += kStep) store_pair(to + at, Lanes<T>::read(from + at));
  if (at == count) return;
  A last[kStep];
  store_pair(last, read_partial(from + at, count - at));
  __builtin_memcpy(to + at, last, (count - at) * sizeof(A));
}
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void narrow(const A* from, std::int64_t count, T* to) {
  constexpr std::int64_t kStep = Lanes<T>::kStep;
  using V = typename Lanes<T>::V;
  std::int64_t at = 0;
  for (; at + kStep <= count; at += kStep) Lanes<T>::write(to + at, load_pair<V>(from + at));
  if (at == count) return;
  A last[kStep] = {};
  __builtin_memcpy(last, from + at, (count - at) * sizeof(A));
  write_partial(to + at, load_pair<V>(last), count - at);
}

// Elements [first, first + count) of a row, in the accumulate dtype.
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void widen_row(const T* row, std::int64_t stride, std::int64_t first,
                                      std::int64_t count, A* to) {
  T copy[kWidened];
  widen(gather(row, stride, first, count, copy), count, to);
}
template <class A>
[[gnu::noinline]] void widen_any(DType dtype, const void* row, std::int64_t stride,
                                 std::int64_t first, std::int64_t count, A* to) {
  if constexpr (sizeof(A) == 8) {
    widen_row(static_cast<const double*>(row), stride, first, count, to);
  } else {
    switch (dtype) {
      case DType::kFloat16:
        return widen_row(static_cast<const Float16*>(row), stride, first, count, to);
      case DType::kBFloat16:
        return widen_row(static_cast<const BFloat16*>(row), stride, first, count, to);
      default: return widen_row(static_cast<const float*>(row), stride, first, count, to);
    }
  }
}

// The reverse, with one rounding.
template <class T, class A>
MEMBOUND_ALWAYS_INLINE void narrow_row(const A* from, T* row, std::int64_t stride,
                                       std::int64_t first, std::int64_t count) {
  if (stride == 1) return narrow(from, count, row + first);
  T copy[kWidened];
  narrow(from, count, copy);
  scatter(row, stride, first, count, copy);
}
template <class A>
[[gnu::noinline]] void narrow_any(DType dtype, const A* from, void* row, std::int64_t stride,
                                  std::int64_t first, std::int64_t count) {
  if constexpr (sizeof(A) == 8) {
    narrow_row(from, static_cast<double*>(row), stride, first, count);
  } else {
    switch (dtype) {
      case DType::kFloat16:
        return narrow_row(from, static_cast<Float16*>(row), stride, first, count);
      case DType::kBFloat16:
        return narrow_row(from, static_cast<BFloat16*>(row), stride, first, count);
      default: return narrow_row(from, static_cast<float*>(row), stride, first, count);
    }
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
