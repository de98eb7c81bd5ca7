// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/qk_norm_rope_backward.hpp"
#include "rope.hpp"

// The definition of qk_norm_rope in double: heads of (batch, seq, heads, head_dim), one shared
// weight, and implicit positions.
namespace membound_test {

struct Normed {
  std::vector<double> value, rstd;  // one rstd per head
};

// x * rstd of each head.
inline Normed normed(const Array& x, double eps) {
  const std::int64_t head_dim = x.shape()[3];
  Normed result;
  for (std::int64_t head = 0; head < x.size() / head_dim; ++head) {
    double squares = 0;
    for (std::int64_t i = 0; i < head_dim; ++i) squares += std::pow(x.get(head * head_dim + i), 2);
    result.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(head_dim) + eps));
    for (std::int64_t i = 0; i < head_dim; ++i) {
      result.value.push_back(x.get(head * head_dim + i) * result.rstd.back());
    }
  }
  return result;
}

// Values in the shape of x, rotated in double.
inline std::vector<double> turned_numbers(const std::vector<double>& numbers, const Array& x,
                                          const Tables& tables, const RopeOptions& options) {
  Array wide(DType::kFloat64, x.shape());
  for (std::int64_t i = 0; i < x.size(); ++i) wide.set(i, numbers[static_cast<std::size_t>(i)]);
  const std::int64_t rotary_dim = options.rotary_dim ? options.rotary_dim : x.shape()[3];
  return turned(wide, tables, options, rotary_dim, [](std::int64_t, std::int64_t s) { return s; })
      .value;
}

// Checks all elements within `slack` of the largest right magnitude, plus half an ulp.
inline void check_near(const Array& out, const std::vector<double>& right, double slack) {
  double largest = 0;
  for (const double one : right) largest = std::max(largest, std::abs(one));
  for (std::int64_t i = 0; i < out.size(); ++i) {
    const double wanted = right[static_cast<std::size_t>(i)];
    CAPTURE(i);
    CAPTURE(wanted);
    REQUIRE(std::abs(out.get(i) - wanted) <= 0.51 * ulp(wanted, out.dtype()) + slack * largest);
  }
}

// The slack for sums and products in the accumulator's dtype.
inline double roundings(DType dtype) {
  return std::ldexp(16.0, -format_of(accumulate_dtype(dtype)).precision);
}

}  // namespace membound_test
