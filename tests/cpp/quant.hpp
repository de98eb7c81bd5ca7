// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "membound/ops/rms_norm_quant.hpp"
#include "norm.hpp"

// A simple definition of rms_norm_quant: codes are looked up in the list of all codes.
namespace membound_test {

inline constexpr DType kQuantised[] = {DType::kFloat8E4M3, DType::kFloat8E5M2, DType::kInt8};

inline std::uint8_t code_at(const Array& out, std::int64_t i) {
  return static_cast<std::uint8_t>(*out.at(i));
}

// The value of a code.
inline double number_of(int code, DType dtype) {
  if (dtype == DType::kInt8) return code < 128 ? code : code - 256;
  const bool e4m3 = dtype == DType::kFloat8E4M3;
  const int mantissa_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const double sign = code & 0x80 ? -1 : 1;
  if (e4m3 && (code & 0x7f) == 0x7f) return NAN;
  if (!e4m3 && exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

inline double limit_of(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? 448 : dtype == DType::kFloat8E5M2 ? 57344 : 127;
}

// Values of the non-negative codes in order: of float8 that of code i, of int8 i.
class Codes {
 public:
  explicit Codes(DType dtype) : dtype_(dtype), limit_(limit_of(dtype)) {
    for (int code = 0; code < 128; ++code) {
      const double number = number_of(code, dtype);
      if (number <= limit_) numbers_.push_back(number);
    }
  }
  const std::vector<double>& numbers() const { return numbers_; }

  // The nearest code, ties to the even one. Not for NaN.
  std::uint8_t nearest(double value) const {
    const double magnitude = std::min(std::abs(value), limit_);
    const auto above = std::lower_bound(numbers_.begin(), numbers_.end(), magnitude);
    auto code = static_cast<int>(above - numbers_.begin());
    if (*above != magnitude) {
      const double up = *above - magnitude, down = magnitude - *(above - 1);
      if (down < up || (down == up && code % 2 == 1)) --code;
    }
    const bool negative = std::signbit(value);
    if (dtype_ == DType::kInt8) return static_cast<std::uint8_t>(negative ? -code : code);
    return static_cast<std::uint8_t>(code | (negative ? 0x80 : 0));
  }

 private:
  DType dtype_;
  double limit_;
  std::vector<double> numbers_;
};

// The results of a call, of shape (..., cols).
struct Quantised {
  Quantised(DType dtype, const Array::Extents& shape, std::int64_t group_size)
      : out(dtype, shape), scale(DType::kFloat32, scale_shape(shape, group_size)) {}

  static Array::Extents scale_shape(Array::Extents shape, std::int64_t group_size) {
    if (group_size == 0) {
      shape.pop_back();
    } else {
      shape.back() = (shape.back() + group_size - 1) / group_size;
    }
    return shape;
  }

  Array out, scale;
};

template <class A>
float promised_scale(double largest, double limit, double upper_bound) {
  if (std::isnan(largest)) return NAN;
  auto scale = static_cast<float>(static_cast<A>(largest) / static_cast<A>(limit));
  if (std::isinf(scale) && !std::isinf(static_cast<A>(largest))) scale = FLT_MAX;
  return std::min(std::max(scale, 0x1p-126f), static_cast<float>(upper_bound));
}

// Checks scale and codes of columns [first, last) of one row of y.
template <class A>
void check_group(const Array& y, std::int64_t first, std::int64_t last, float scale,
                 const Codes& codes, const Array& out) {
  const A factor = 1 / static_cast<A>(scale);
  for (std::int64_t i = first; i < last; ++i) {
    const double value = static_cast<A>(y.get(i)) * factor;
    CAPTURE(i);
    CAPTURE(value);
    if (std::isnan(value)) {
      const double got = number_of(code_at(out, i), out.dtype());
      REQUIRE((out.dtype() == DType::kInt8 ? got == 0 : std::isnan(got)));
    } else {
      REQUIRE(static_cast<int>(code_at(out, i)) == static_cast<int>(codes.nearest(value)));
    }
  }
}

// Checks that out and scale are the quantisation of y. static_scale: the given one, or null.
inline void check_quantised(const Array& y, const RmsNormQuantOptions& options, const Array& out,
                            const Array* scale, const float* static_scale) {
  const bool wide = y.dtype() == DType::kFloat64;
  const Codes codes(out.dtype());
  const std::int64_t cols = y.shape().back();
  const std::int64_t group = options.group_size == 0 ? cols : options.group_size;
  std::int64_t place = 0;
  for (std::int64_t row = 0; row < y.size(); row += cols) {
    for (std::int64_t first = row; first < row + cols; first += group) {
      const std::int64_t last = std::min(first + group, row + cols);
      double largest = 0;
      for (std::int64_t i = first; i < last; ++i) {
        const double magnitude = std::abs(y.get(i));
        if (!(magnitude <= largest) && !std::isnan(largest)) largest = magnitude;
      }
      float used = static_scale != nullptr ? *static_scale : 0;
      if (static_scale == nullptr) {
        used = static_cast<float>(scale->get(place++));
        const float promised =
            wide ? promised_scale<double>(largest, limit_of(out.dtype()), options.scale_upper_bound)
                 : promised_scale<float>(largest, limit_of(out.dtype()), options.scale_upper_bound);
        CAPTURE(largest);
        REQUIRE((used == promised || (std::isnan(used) && std::isnan(promised))));
      }
      wide ? check_group<double>(y, first, last, used, codes, out)
           : check_group<float>(y, first, last, used, codes, out);
    }
  }
}

// A static scale of shape (1,).
inline std::unique_ptr<Array> static_scale_of(float value) {
  auto scale = std::make_unique<Array>(DType::kFloat32, Array::Extents{1});
  scale->set(0, value);
  return scale;
}

}  // namespace membound_test
