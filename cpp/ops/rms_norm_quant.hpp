// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/rms_norm_quant.hpp"
#include "ops/rms_norm.hpp"

namespace membound {

// What both back ends receive: the norm, and what becomes of its result.
struct RmsNormQuantProblem {
  RmsNormProblem norm;  // its out, mean and rstd are null
  void* out;
  DType out_dtype;  // kFloat8E4M3, kFloat8E5M2 or kInt8
  RowLayout out_rows;
  std::int64_t out_col_stride;
  const float* static_scale;  // null: dynamic
  float* scale;               // null with a static one
  RowLayout scale_rows;
  std::int64_t scale_col_stride;  // between groups of a row
  std::int64_t group_size;        // columns that share a scale: 64, 128 or all
  float scale_upper_bound;        // infinity for none
};

// What the user's call brought; what is null is not there.
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
