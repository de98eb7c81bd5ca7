// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "array.hpp"
#include "membound/ops/rope_backward.hpp"

// The definition of rope in double: heads of (batch, seq, heads, head_dim).
namespace membound_test {

inline double angle_of(std::int64_t position, std::int64_t pair, std::int64_t rotary_dim) {
  return static_cast<double>(position) *
         std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
}

// Tables of cos and sin, (positions, rotary_dim / 2).
struct Tables {
  Tables(DType dtype, std::int64_t positions, std::int64_t rotary_dim)
      : cos(dtype, {positions, rotary_dim / 2}), sin(dtype, {positions, rotary_dim / 2}) {
    for (std::int64_t i = 0; i < cos.size(); ++i) {
      const double angle = angle_of(i / (rotary_dim / 2), i % (rotary_dim / 2), rotary_dim);
      cos.set(i, std::cos(angle));
      sin.set(i, std::sin(angle));
    }
  }
  Array cos, sin;
};

// The right values of all elements, and the magnitude of their terms.
struct Turned {
  std::vector<double> value, terms;
};
template <class Position>
Turned turned(const Array& x, const Tables& tables, const RopeOptions& options,
              std::int64_t rotary_dim, Position position_of) {
  const std::int64_t head_dim = x.shape()[3], heads = x.shape()[2], seq = x.shape()[1];
  const std::int64_t pairs = rotary_dim / 2;
  Turned result;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t token = i / (head_dim * heads), d = i % head_dim - options.rotary_offset;
    if (d < 0 || d >= rotary_dim) {
      result.value.push_back(x.get(i));
      result.terms.push_back(0.0);
      continue;
    }
    const std::int64_t pair = options.interleaved ? d / 2 : d % pairs;
    const bool second = options.interleaved ? d % 2 == 1 : d >= pairs;
    const std::int64_t apart = options.interleaved ? 1 : pairs;
    const std::int64_t row = position_of(token / seq, token % seq) * pairs + pair;
    const double c = tables.cos.get(row);
    const double s = options.inverse ? -tables.sin.get(row) : tables.sin.get(row);
    const double here = x.get(i) * c;
    const double there = second ? x.get(i - apart) * s : -x.get(i + apart) * s;
    result.value.push_back(here + there);
    result.terms.push_back(std::abs(here) + std::abs(there));
  }
  return result;
}

// Slack: three roundings in the accumulator's dtype, and the rounding of the result.
inline void check_turned(const Array& out, const Turned& right) {
  const double rounding = std::ldexp(1.5, -format_of(accumulate_dtype(out.dtype())).precision);
  for (std::int64_t i = 0; i < out.size(); ++i) {
    const double value = right.value[static_cast<std::size_t>(i)];
    const double slack = rounding * right.terms[static_cast<std::size_t>(i)];
    const double error = std::abs(out.get(i) - value);
    if (!(error <= 0.5001 * ulp(value, out.dtype()) + slack * 1.5)) {
      CAPTURE(i);
      CAPTURE(value);
      CAPTURE(out.get(i));
      FAIL_CHECK("off by " << error / ulp(value, out.dtype()) << " ulp");
      return;
    }
  }
}

}  // namespace membound_test
