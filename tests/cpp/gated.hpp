// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include "membound/ops/rms_norm_gated.hpp"
#include "norm.hpp"

// Shared by the tests of rms_norm_gated and of its backward.
namespace membound_test {

// 1 / (1 + exp(-z)) and its complement, both without cancellation.
inline long double sigmoid(long double z) {
  const long double e = expl(-fabsl(z));
  return z < 0 ? e / (1 + e) : 1 / (1 + e);
}
inline long double exact_silu(long double z) { return z * sigmoid(z); }
inline long double exact_slope(long double z) { return sigmoid(z) * (1 + z * sigmoid(-z)); }
// The magnitude of the terms of the slope, which cancel near -1.28.
inline long double slope_size(long double z) { return sigmoid(z) * (1 + fabsl(z) * sigmoid(-z)); }

inline void run_gated(const Array& x, const Array& z, const Array* weight,
                      const RmsNormGatedOptions& options, const Array& out, const Array* rstd) {
  rms_norm_gated(x.view(), z.view(), Optional<ConstTensorView>(weight).get(), options, out.view(),
                 Optional<TensorView>(rstd).get(), StreamView::legacy_default());
}

// The normalised row of element i and the row's statistic.
inline long double normalised_value(const Array& x, const Array& z, bool norm_before_gate,
                                    std::int64_t i) {
  return norm_before_gate ? x.get(i) : x.get(i) * exact_silu(z.get(i));
}
inline long double exact_gated_rstd(const Array& x, const Array& z, bool norm_before_gate,
                                    double eps, std::int64_t row) {
  const std::int64_t cols = x.shape().back();
  return exact_rstd_of(cols, eps, [&](std::int64_t col) {
    return normalised_value(x, z, norm_before_gate, row * cols + col);
  });
}

// The result of the forward for one element and one value of silu(z), in the accumulator's
// arithmetic; every step is monotone in silu(z).
template <class A>
double gated_result(A x, A silu, A rstd, A weight, const RmsNormGatedOptions& options,
                    DType dtype) {
  const auto step = [&](A value) {
    const bool rounds = options.rounding == Rounding::kBeforeWeight;
    return rounds ? static_cast<A>(rounded(value, dtype)) : value;
  };
  const A input = options.norm_before_gate ? x : x * silu;
  const A h = step(input * rstd);
  const A norm = h * weight;
  return rounded(options.norm_before_gate ? step(norm) * silu : norm, dtype);
}

struct Between {
  double low, high;
};
template <class A>
Between gated_results(double x, double z, double rstd, double weight,
                      const RmsNormGatedOptions& options, DType dtype) {
  constexpr int kUlps = 2;
  const A silu = static_cast<A>(exact_silu(z));
  const A unit = static_cast<A>(
      ulp(static_cast<double>(silu), sizeof(A) == 8 ? DType::kFloat64 : DType::kFloat32));
  const auto at = [&](A value) {
    return gated_result<A>(static_cast<A>(x), value, static_cast<A>(rstd), static_cast<A>(weight),
                           options, dtype);
  };
  const double one = at(silu - kUlps * unit), other = at(silu + kUlps * unit);
  return {std::min(one, other), std::max(one, other)};
}

// Checks every element given the row's rstd, and rstd itself.
inline void check_gated(const Array& x, const Array& z, const Array* weight,
                        const RmsNormGatedOptions& options, const Array& out, const Array& rstd) {
  const DType dtype = x.dtype();
  const std::int64_t cols = x.shape().back();
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t row = i / cols;
    CAPTURE(row);
    if (i % cols == 0) {
      const auto exact =
          static_cast<double>(exact_gated_rstd(x, z, options.norm_before_gate, options.eps, row));
      const int ulps = options.norm_before_gate ? 2 : 4;
      REQUIRE(std::abs(rstd.get(row) - exact) <= ulps * ulp(exact, rstd.dtype()));
    }
    const double factor = factor_of(weight, i % cols, options.weight_offset, dtype);
    const Between expected =
        dtype == DType::kFloat64
            ? gated_results<double>(x.get(i), z.get(i), rstd.get(row), factor, options, dtype)
            : gated_results<float>(x.get(i), z.get(i), rstd.get(row), factor, options, dtype);
    const double got = out.get(i);
    CAPTURE(i % cols);
    CAPTURE(got);
    CAPTURE(expected.low);
    REQUIRE(got >= expected.low);
    REQUIRE(got <= expected.high);
  }
}

}  // namespace membound_test
