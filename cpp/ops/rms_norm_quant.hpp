// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/quantised.hpp"
#include "membound/ops/rms_norm_quant.hpp"
#include "ops/rms_norm.hpp"

namespace membound {

// What both back ends receive: the norm, whose out, mean and rstd are null, and what becomes of its
// result.
struct RmsNormQuantProblem : QuantisedResult {
  RmsNormProblem norm;
};

// The arrays of a call of (..., heads, cols) that a head has its own part of. Scales are one for
// each row, or have the groups of a row as their last axis.
inline constexpr CallArray<NormQuantCall, ConstTensorView> kNormQuantInputs[] = {
    {&NormQuantCall::x}, {&NormQuantCall::residual}, {&NormQuantCall::weight}};
inline constexpr CallArray<NormQuantCall, TensorView> kNormQuantOutputs[] = {
    {&NormQuantCall::out},
    {&NormQuantCall::residual_out},
    {&NormQuantCall::scale, /*is_statistic=*/true}};

namespace cpu {
void rms_norm_quant(const RmsNormQuantProblem& problem);
}
namespace cuda {
void rms_norm_quant(const RmsNormQuantProblem& problem, StreamView stream);
}

}  // namespace membound
