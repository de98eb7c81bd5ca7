// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "array.hpp"
#include "membound/ops/rms_norm.hpp"

// Shared by the tests of the norm ops.
namespace membound_test {

// An optional view, as the ops' argument type.
template <class View>
class Optional {
 public:
  explicit Optional(const Array* array) {
    if (array != nullptr) view_ = View(array->view());
    present_ = array != nullptr;
  }
  const View* get() const { return present_ ? &view_ : nullptr; }

 private:
  View view_;
  bool present_;
};

// 1 / sqrt(mean(x^2) + eps) of `cols` values, in long double: safe at any magnitude of float64.
template <class Value>
long double exact_rstd_of(std::int64_t cols, double eps, Value value) {
  long double sum = 0;
  for (std::int64_t col = 0; col < cols; ++col) {
    const long double one = value(col);
    sum += one * one;
  }
  return 1 / sqrtl(sum / cols + eps);
}

// Mean and 1 / sqrt(variance + eps) of `cols` values. The mean is corrected in a second pass, so
// that deviations keep the digits of float64 if the mean is many standard deviations.
struct Moments {
  long double mean, rstd;
  long double deviation(long double value) const { return (value - coarse) - rest; }
  long double coarse, rest;
};
template <class Value>
Moments exact_moments_of(std::int64_t cols, double eps, Value value) {
  Moments exact{};
  for (std::int64_t col = 0; col < cols; ++col) exact.coarse += value(col);
  // The mean is rounded to the precision of the values, so that close differences are exact.
  exact.coarse = static_cast<double>(exact.coarse / cols);
  for (std::int64_t col = 0; col < cols; ++col) exact.rest += value(col) - exact.coarse;
  exact.rest /= cols;
  exact.mean = exact.coarse + exact.rest;
  exact.rstd =
      exact_rstd_of(cols, eps, [&](std::int64_t col) { return exact.deviation(value(col)); });
  return exact;
}

// weight + offset in the accumulator's arithmetic; 1 without a weight.
inline double factor_of(const Array* weight, std::int64_t col, double offset, DType dtype) {
  if (weight == nullptr) return 1;
  if (dtype == DType::kFloat64) return weight->get(col) + offset;
  const float plain = static_cast<float>(weight->get(col));
  return offset == 0 ? plain : plain + static_cast<float>(offset);
}

// The result of the forward for one element, in the accumulator's arithmetic.
template <class A>
double promised_in(A x, A rstd, A weight, bool has_weight, Rounding rounding, DType dtype) {
  A value = x * rstd;
  if (rounding == Rounding::kBeforeWeight) value = static_cast<A>(rounded(value, dtype));
  if (has_weight) value = value * weight;
  return rounded(value, dtype);
}
inline double promised(double x, double rstd, double weight, bool has_weight, Rounding rounding,
                       DType dtype) {
  if (dtype == DType::kFloat64)
    return promised_in<double>(x, rstd, weight, has_weight, rounding, dtype);
  return promised_in<float>(static_cast<float>(x), static_cast<float>(rstd),
                            static_cast<float>(weight), has_weight, rounding, dtype);
}

// x + residual as the forward adds it.
inline double sum_of(const Array& x, const Array& residual, std::int64_t i) {
  if (x.dtype() == DType::kFloat64) return x.get(i) + residual.get(i);
  return static_cast<float>(x.get(i)) + static_cast<float>(residual.get(i));
}

// Layouts of (2, 3, cols).
struct Layout {
  const char* name;
  Array::Extents strides;
  std::int64_t lead;
};
inline std::vector<Layout> layouts_of(std::int64_t cols) {
  return {
      {"contiguous", {3 * cols, cols, 1}, 0},
      {"one element off", {3 * cols, cols, 1}, 1},
      {"padded rows", {3 * (cols + 3), cols + 3, 1}, 2},
      {"permuted rows", {cols, 2 * cols, 1}, 0},
      {"every other column", {6 * cols, 2 * cols, 2}, 0},
      {"columns first", {1, 2, 6}, 0},
      {"reversed columns", {3 * cols, cols, -1}, 0},
      {"reversed rows", {-3 * cols, -cols, 1}, 0},
      {"all apart", {70 * cols, 9 * cols, 3}, 1},
  };
}

}  // namespace membound_test
