// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/quantised.hpp"
#include "membound/ops/rms_norm_quant.hpp"
#include "ops/rms_norm.hpp"

namespace membound {

// What both back ends receive: the norm, with null out, mean and rstd, and how its result is
// quantised.
struct RmsNormQuantProblem : QuantisedResult {
  RmsNormProblem norm;
};

// The arguments of the user's call; absent ones are null.
struct RmsNormQuantCall {
  const char* op;
  const ConstTensorView& x;
  const ConstTensorView* residual = nullptr;
  const ConstTensorView* weight = nullptr;
  RmsNormQuantOptions options;
  const TensorView& out;
  const TensorView* residual_out = nullptr;
  const ConstTensorView* static_scale = nullptr;
  const TensorView* scale = nullptr;
};
void run_rms_norm_quant(const RmsNormQuantCall& call, StreamView stream);

namespace cpu {
void rms_norm_quant(const RmsNormQuantProblem& problem);
}
namespace cuda {
void rms_norm_quant(const RmsNormQuantProblem& problem, StreamView stream);
}

}  // namespace membound
