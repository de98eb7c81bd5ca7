// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/safe_scale.hpp"
#include "cpu/rows.hpp"
#include "ops/rms_norm.hpp"

// How rows of a norm come to the kernels, for the back ends that do something with its result.
namespace membound::cpu {

// What all rows share, and the parameters that it points into; row pointers and their number come
// with each run.
struct PreparedNorm {
  RmsNormRows rows;
  PreparedWeight weight, bias;
};
PreparedNorm prepare_norm(const RmsNormProblem& problem, const KernelTable& table);

// The sums of squares that kernels trust, and how they scale the others.
template <class Rows>
void set_safe_range(Rows& rows, DType dtype, double eps) {
  const bool wide = accumulate_dtype(dtype) == DType::kFloat64;
  const auto set = [&](auto range) {
    rows.safe_low = range.low;
    rows.safe_high = range.high;
  };
  wide ? set(safe_range(eps, double{})) : set(safe_range(eps, float{}));
  rows.safe_exponent =
      wide ? [](double largest,
                double least) { return safe_exponent(largest, least, kSafeExponentLimitDouble); }
           : [](double largest, double least) {
               return safe_exponent(largest, least, kSafeExponentLimitFloat);
             };
}

// Moves to the rows from `row` on, at most rows.rows, fewer where a layout leaves its innermost
// axis. Arrays that the problem lacks stay as they are.
void enter_rows(RmsNormRows& rows, const RmsNormProblem& problem, std::int64_t row);

}  // namespace membound::cpu
