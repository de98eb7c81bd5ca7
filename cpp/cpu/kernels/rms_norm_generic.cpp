// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm_generic.hpp"

#include "cpu/silu.hpp"
#include "cpu/weight.hpp"
#include "cpu/widen.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

// Rounds to float with round-to-odd, so that rounding again to 16 bits gives the result of a single
// rounding: the lost digits leave a trace in the last bit.
MEMBOUND_ALWAYS_INLINE float rounded_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  const double back = nearest;
  if (!(back != value) || value != value) return nearest;
  auto bits = bit_copy<std::uint32_t>(nearest);
  if (__builtin_fabs(back) > __builtin_fabs(value)) --bits;
  return bit_copy<float>(bits | 1u);
}

template <class T, class A>
void widen_one(const T* from, std::int64_t stride, std::int64_t count, A* to) {
  if constexpr (sizeof(typename Lanes<T>::A) == sizeof(A)) {
    for (std::int64_t at = 0; at < count; at += kWidened) {
      const std::int64_t some = count - at < kWidened ? count - at : kWidened;
      widen_row(from, stride, at, some, to + at);
    }
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<A>(widen(from[i * stride]));
  }
}

template <class T, class A>
void narrow_one(const A* from, T* to, std::int64_t stride, std::int64_t count) {
  if constexpr (sizeof(T) > 2 && sizeof(typename Lanes<T>::A) != sizeof(A)) {
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<T>(from[i]);
  } else {
    for (std::int64_t at = 0; at < count; at += kWidened) {
      const std::int64_t some = count - at < kWidened ? count - at : kWidened;
      if constexpr (sizeof(typename Lanes<T>::A) == sizeof(A)) {
        narrow_row(from + at, to + at * stride, stride, 0, some);
      } else {
        float odd[kWidened];
        for (std::int64_t i = 0; i < some; ++i) odd[i] = rounded_to_odd(from[at + i]);
        narrow_row(odd, to + at * stride, stride, 0, some);
      }
    }
  }
}

template <class T, class A>
void convert(const RowConversion& rows) {
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    if (rows.to_work_area) {
      widen_one(static_cast<const T*>(rows.from) + row * rows.from_row_stride, rows.from_col_stride,
                rows.cols, static_cast<A*>(rows.to) + row * rows.to_row_stride);
    } else {
      narrow_one(static_cast<const A*>(rows.from) + row * rows.from_row_stride,
                 static_cast<T*>(rows.to) + row * rows.to_row_stride, rows.to_col_stride,
                 rows.cols);
    }
  }
}

template <class A>
void convert_with(const RowConversion& rows) {
  switch (rows.to_work_area ? rows.from_dtype : rows.to_dtype) {
    case DType::kFloat16: return convert<Float16, A>(rows);
    case DType::kBFloat16: return convert<BFloat16, A>(rows);
    case DType::kFloat32: return convert<float, A>(rows);
    default: return convert<double, A>(rows);
  }
}

template <class A>
void multiply_by_silu(const RowConversion& rows) {
  using V = typename Lanes<A>::V;
  constexpr std::int64_t kStep = Lanes<A>::kStep;
  for (std::int64_t row = 0; row < rows.rows; ++row) {
    const A* gate = static_cast<const A*>(rows.from) + row * rows.from_row_stride;
    A* to = static_cast<A*>(rows.to) + row * rows.to_row_stride;
    std::int64_t col = 0;
    for (; col + kStep <= rows.cols; col += kStep) {
      const Pair<V> slope = silu<A>(Lanes<A>::read(gate + col)), value = Lanes<A>::read(to + col);
      store_pair(to + col, Pair<V>{value.first * slope.first, value.second * slope.second});
    }
    if (col == rows.cols) continue;
    const std::int64_t left = rows.cols - col;
    const Pair<V> slope = silu<A>(read_partial(gate + col, left)),
                  value = read_partial(to + col, left);
    write_partial(to + col, Pair<V>{value.first * slope.first, value.second * slope.second}, left);
  }
}

}  // namespace

void convert_rows(const RowConversion& rows) {
  const DType wide = rows.to_work_area ? rows.to_dtype : rows.from_dtype;
  wide == DType::kFloat64 ? convert_with<double>(rows) : convert_with<float>(rows);
}

// to *= silu(from), both of one dtype with contiguous columns.
void multiply_silu(const RowConversion& rows) {
  rows.to_dtype == DType::kFloat64 ? multiply_by_silu<double>(rows) : multiply_by_silu<float>(rows);
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
