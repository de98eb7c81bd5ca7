// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cpu/kernels/rms_norm.hpp"

#include "core/numeric.hpp"

namespace membound::cpu::MEMBOUND_CPU_ISA {

namespace {

template <class To, class From>
[[gnu::always_inline]] inline To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

[[gnu::always_inline]] inline float widen(BFloat16 value) {
  return bit_copy<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
[[gnu::always_inline]] inline float widen(Float16 value) {
  const std::uint32_t magnitude = value.bits & 0x7fffu;
  const std::uint32_t sign = (value.bits & 0x8000u) << 16;
  // 2^112 moves the exponent; subnormals come out right because the product is exact.
  float result = bit_copy<float>(magnitude << 13) * bit_copy<float>(0x77800000u);
  if (magnitude >= 0x7c00u) result = bit_copy<float>(0x7f800000u | magnitude << 13);
  return bit_copy<float>(bit_copy<std::uint32_t>(result) | sign);
}
[[gnu::always_inline]] inline float widen(float value) { return value; }
[[gnu::always_inline]] inline double widen(double value) { return value; }

[[gnu::always_inline]] inline void narrow(float value, BFloat16& result) {
  const std::uint32_t bits = bit_copy<std::uint32_t>(value);
  result.bits = value == value ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : 0x7fc0u;
}
[[gnu::always_inline]] inline void narrow(float value, Float16& result) {
  const std::uint32_t bits = bit_copy<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    half = bit_copy<std::uint32_t>(bit_copy<float>(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  }
  result.bits = half | (bits >> 16 & 0x8000u);
}
[[gnu::always_inline]] inline void narrow(float value, float& result) { result = value; }
[[gnu::always_inline]] inline void narrow(double value, double& result) { result = value; }

template <class A>
[[gnu::always_inline]] inline A power_of_two(int exponent) {
  if constexpr (sizeof(A) == 8) {
    return bit_copy<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
  } else {
    return bit_copy<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  }
}

template <class T, class A>
A sum_of_squares(const T* x, std::int64_t stride, std::int64_t cols, A scale) {
  A lanes[64] = {};
  for (std::int64_t col = 0; col < cols; ++col) {
    const A value = widen(x[col * stride]) * scale;
    lanes[col % 64] += value * value;
  }
  for (int half = 32; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

template <class A>
A root(A value) {
  if constexpr (sizeof(A) == 8) {
    return __builtin_sqrt(value);
  } else {
    return __builtin_sqrtf(value);
  }
}

template <class T>
void normalise_row(const RmsNormRows& rows, std::int64_t row) {
  using A = accumulate_t<T>;
  const T* x = static_cast<const T*>(rows.x) + row * rows.x_row_stride;
  T* out = static_cast<T*>(rows.out) + row * rows.out_row_stride;
  A scale = 1;
  A sum = sum_of_squares(x, rows.x_col_stride, rows.cols, scale);
  A rstd = 1 / root(sum / static_cast<A>(rows.cols) + static_cast<A>(rows.eps));
  if (!(sum >= static_cast<A>(rows.safe_low) && sum <= static_cast<A>(rows.safe_high))) {
    double largest = 0;
    for (std::int64_t col = 0; col < rows.cols; ++col) {
      const double value = __builtin_fabs(widen(x[col * rows.x_col_stride]));
      largest = value > largest ? value : largest;
    }
    scale = power_of_two<A>(rows.safe_exponent(largest, rows.eps));
    sum = sum_of_squares(x, rows.x_col_stride, rows.cols, scale);
    rstd = 1 / __builtin_sqrt(sum / static_cast<double>(rows.cols) + rows.eps * scale * scale);
  }
  if (rows.rstd) {
    static_cast<A*>(rows.rstd)[row * rows.rstd_row_stride] =
        static_cast<double>(rstd) * static_cast<double>(scale);
  }
  for (std::int64_t col = 0; col < rows.cols; ++col) {
    A value = (widen(x[col * rows.x_col_stride]) * scale) * rstd;
    T& result = out[col * rows.out_col_stride];
    if (rows.round_before_weight) {
      narrow(value, result);
      value = widen(result);
    }
    if (rows.weight_form == WeightForm::kNative) {
      value *= widen(static_cast<const T*>(rows.weight)[col]);
    } else if (rows.weight_form == WeightForm::kPrepared) {
      value *= static_cast<const A*>(rows.weight)[col];
    }
    narrow(value, result);
  }
}

template <class T>
void normalise(const RmsNormRows& rows) {
  for (std::int64_t row = 0; row < rows.rows; ++row) normalise_row<T>(rows, row);
}

template <class W, class A>
void prepare(const RmsNormWeight& weight) {
  for (std::int64_t col = 0; col < weight.cols; ++col) {
    const A value = widen(static_cast<const W*>(weight.weight)[col * weight.stride]);
    static_cast<A*>(weight.prepared)[col] =
        weight.offset == 0 ? value : static_cast<A>(weight.offset) + value;
  }
}

template <class A>
void prepare_as(const RmsNormWeight& weight) {
  switch (weight.dtype) {
    case DType::kFloat16: return prepare<Float16, A>(weight);
    case DType::kBFloat16: return prepare<BFloat16, A>(weight);
    case DType::kFloat32: return prepare<float, A>(weight);
    default: return prepare<double, A>(weight);
  }
}

}  // namespace

void rms_norm(const RmsNormRows& rows) {
  switch (rows.dtype) {
    case DType::kFloat16: return normalise<Float16>(rows);
    case DType::kBFloat16: return normalise<BFloat16>(rows);
    case DType::kFloat32: return normalise<float>(rows);
    default: return normalise<double>(rows);
  }
}

void rms_norm_weight(const RmsNormWeight& weight) {
  if (weight.x_dtype == DType::kFloat64) {
    prepare_as<double>(weight);
  } else {
    prepare_as<float>(weight);
  }
}

}  // namespace membound::cpu::MEMBOUND_CPU_ISA
