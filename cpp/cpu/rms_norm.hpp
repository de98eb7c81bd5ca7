// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/safe_scale.hpp"
#include "cpu/rows.hpp"
#include "ops/rms_norm.hpp"

// How back ends that use the result of a norm pass its rows to the kernels.
namespace membound::cpu {

// What all rows share, and the parameters it points to. Each run sets row pointers and the number
// of rows.
struct PreparedNorm {
  RmsNormRows rows;
  PreparedWeight weight, bias;
};
PreparedNorm prepare_norm(const RmsNormProblem& problem, const KernelTable& table);

// The range in which kernels accept a plain sum of squares, and how they rescale rows outside it.
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

// Moves to the rows from `row` on: at most rows.rows, fewer where a layout's innermost axis ends.
// Arrays that the problem lacks are left alone.
void seek_rows(RmsNormRows& rows, const RmsNormProblem& problem, std::int64_t row);

}  // namespace membound::cpu
