// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cpu/kernels/weight.hpp"
#include "cpu/partial_step.hpp"

// A weight of another dtype or stride, or with an offset, is converted once per call: offset +
// weight in the accumulate type, each step in the order of Lanes<T>, zero-padded to a whole step.
namespace membound::cpu::MEMBOUND_CPU_ISA {
namespace {

MEMBOUND_ALWAYS_INLINE float widen(BFloat16 value) {
  return bit_copy<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
MEMBOUND_ALWAYS_INLINE float widen(Float16 value) {
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  const float finite = bit_copy<float>(magnitude << 13) * 0x1p112f;
  const float special = bit_copy<float>(magnitude << 13 | 0x7f800000u);
  const float result = magnitude >= 0x7c00u ? special : finite;
  return value.bits & 0x8000u ? -result : result;
}
MEMBOUND_ALWAYS_INLINE float widen(float value) { return value; }
MEMBOUND_ALWAYS_INLINE double widen(double value) { return value; }

// Drops the payload of a NaN unless the weight has x's dtype: rounding to bfloat16 relies on a zero
// lower half, and a weight read in place keeps its payload too.
template <bool kKeepNan, class V, class A>
MEMBOUND_ALWAYS_INLINE V finish(V value, A offset) {
  if (offset != 0) value += offset;
  if constexpr (kKeepNan) return value;
  return value == value ? value : V{} + __builtin_nanf("");
}

// Reads as many elements as two V hold: a step of a row of another dtype.
template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> read_step(const Float16* from) {
  return load_halves<V>(from);
}
template <class V>
MEMBOUND_ALWAYS_INLINE Pair<V> read_step(const BFloat16* from) {
  return Lanes<BFloat16>::read(from);
}
template <class V, class A>
MEMBOUND_ALWAYS_INLINE Pair<V> read_step(const A* from) {
  return {load<V>(from), load<V>(from + sizeof(V) / sizeof(A))};
}

template <class T, class W>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> read_weight(const W* from, std::int64_t stride,
                                                              std::int64_t count) {
  using Row = Lanes<T>;
  if constexpr (sizeof(typename Lanes<W>::A) == sizeof(typename Row::A)) {
    // A bfloat16 step is read as even and odd elements, so it fits bfloat16 rows only.
    constexpr bool kFits = Lanes<W>::kEvenOdd == Row::kEvenOdd || !Lanes<W>::kEvenOdd;
    if constexpr (kFits) {
      if (stride == 1 && count >= Row::kStep) {
        Pair<typename Row::V> value = read_step<typename Row::V>(from);
        if constexpr (Row::kEvenOdd && !Lanes<W>::kEvenOdd) value = deinterleave(value);
        return value;
      }
    }
  }
  typename Row::A values[Row::kStep] = {};
  for (std::int64_t i = 0; i < count && i < Row::kStep; ++i) {
    values[i] = static_cast<typename Row::A>(widen(from[i * stride]));
  }
  Pair<typename Row::V> value{load<typename Row::V>(values),
                              load<typename Row::V>(values + Row::kStep / 2)};
  if constexpr (Row::kEvenOdd) value = deinterleave(value);
  return value;
}

template <class T, class W>
void prepare(const RmsNormWeight& weight) {
  using Row = Lanes<T>;
  auto* to = static_cast<typename Row::A*>(weight.prepared);
  const auto offset = static_cast<typename Row::A>(weight.offset);
  constexpr bool kSame = kDTypeOf<T> == kDTypeOf<W>;
  for (std::int64_t col = 0; col < weight.cols; col += Row::kStep) {
    const Pair<typename Row::V> value =
        read_weight<T>(static_cast<const W*>(weight.weight) + col * weight.stride, weight.stride,
                       weight.cols - col);
    store(to + col, finish<kSame>(value.first, offset));
    store(to + col + Row::kStep / 2, finish<kSame>(value.second, offset));
  }
}

template <class T>
void prepare_for(const RmsNormWeight& weight) {
  switch (weight.dtype) {
    case DType::kFloat16: return prepare<T, Float16>(weight);
    case DType::kBFloat16: return prepare<T, BFloat16>(weight);
    case DType::kFloat32: return prepare<T, float>(weight);
    default: return prepare<T, double>(weight);
  }
}

// The weight for `count` elements (at most a step) from column col on.
template <class T, WeightForm kForm>
MEMBOUND_ALWAYS_INLINE Pair<typename Lanes<T>::V> weight_step(const void* weight, std::int64_t col,
                                                              std::int64_t count) {
  using Row = Lanes<T>;
  using V = typename Row::V;
  if constexpr (kForm == WeightForm::kNative) {
    const auto* from = static_cast<const T*>(weight) + col;
    return count == Row::kStep ? Row::read(from) : read_partial(from, count);
  } else {
    const auto* from = static_cast<const typename Row::A*>(weight) + col;
    return {load<V>(from), load<V>(from + Row::kStep / 2)};
  }
}

}  // namespace
}  // namespace membound::cpu::MEMBOUND_CPU_ISA
