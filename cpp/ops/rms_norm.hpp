// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/heads.hpp"
#include "core/rows.hpp"
#include "membound/norm_call.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols. Arrays that the call lacks have
// no data. Results may be written over inputs of rows (in place).
struct RmsNormProblem {
  InputRows x, residual, gate;
  InputColumns weight, bias;
  OutputRows out, residual_out, mean, rstd;
  DType accumulate;  // of sums, mean and rstd: float64 where an input of rows is, else float32
  Rounding rounding;
  bool centred;
  bool norm_before_gate;
  std::int64_t rows, cols;  // at least 1
  std::int64_t heads;       // row r takes weight and bias of head r % heads; 1 on the CPU
  double eps;
  double weight_offset;

  // A weight, and a bias if there is one, of x's dtype, and no options: the common path, which GPU
  // kernels under register pressure are compiled for.
  bool is_plain() const {
    return weight.data != nullptr && weight.dtype == x.dtype && bias.dtype == x.dtype &&
           weight_offset == 0.0 && rounding == Rounding::kOnce;
  }
};

// The arrays of a call of (..., heads, cols) that a head has its own part of.
inline constexpr CallArray<NormCall, ConstTensorView> kNormInputs[] = {
    {&NormCall::x},      {&NormCall::residual}, {&NormCall::gate},
    {&NormCall::weight}, {&NormCall::bias},
};
inline constexpr CallArray<NormCall, TensorView> kNormOutputs[] = {
    {&NormCall::out},
    {&NormCall::residual_out},
    {&NormCall::mean, /*is_statistic=*/true},
    {&NormCall::rstd, /*is_statistic=*/true},
};

// The heads of parameters of (heads, cols), 1 for those of (cols,).
std::int64_t heads_of(const NormCall& call);
// What every op on this seam checks of its inputs, and what becomes of a checked call.
void check_norm_inputs(const NormCall& call);
RmsNormProblem rms_norm_problem(const NormCall& call);

namespace cpu {
void rms_norm(const RmsNormProblem& problem);
}
namespace cuda {
void rms_norm(const RmsNormProblem& problem, StreamView stream);
}

}  // namespace membound
