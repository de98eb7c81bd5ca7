// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/stream.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols, no tensors, no user errors.
// With a residual, rows of x + residual are normalised and written to residual_out too
// (add_rms_norm). Centred, the mean of each row is taken away first (layer_norm).
struct RmsNormProblem {
  const void* x;
  const void* residual;  // null: none
  const void* weight;    // null: none
  const void* bias;      // null: none
  void* out;             // may be x or residual: in place
  void* residual_out;    // there is one with a residual; may be x or residual, not out
  void* mean;            // null: not wanted, or not centred; else accumulate_dtype(dtype)
  void* rstd;            // null: not wanted; else accumulate_dtype(dtype)
  DType dtype;           // of x, residual, out and residual_out
  DType weight_dtype;    // equal to dtype when there is no weight
  DType bias_dtype;      // equal to dtype when there is no bias
  Rounding rounding;     // kOnce when centred
  bool centred;
  std::int64_t rows;                                 // at least 1
  std::int64_t cols;                                 // at least 1
  RowLayout x_rows, out_rows, mean_rows, rstd_rows;  // where each row starts, in elements
  RowLayout residual_rows, residual_out_rows;
  std::int64_t x_col_stride, out_col_stride, weight_stride, bias_stride;  // 1 when cols is 1
  std::int64_t residual_col_stride, residual_out_col_stride;
  double eps;
  double weight_offset;
};

// What the user's call brought; op names the function in every error. What is null is not there.
struct RmsNormCall {
  const char* op;
  const ConstTensorView& x;
  const ConstTensorView* residual;
  const ConstTensorView* weight;
  const ConstTensorView* bias;
  RmsNormOptions options;
  bool centred;
  const TensorView& out;
  const TensorView* residual_out;
  const TensorView* mean;
  const TensorView* rstd;
};
void run_rms_norm(const RmsNormCall& call, StreamView stream);
void run_rms_norm(const RmsNormCall& call, Device staging_device);

namespace cpu {
void rms_norm(const RmsNormProblem& problem);
}
namespace cuda {
void rms_norm(const RmsNormProblem& problem, StreamView stream);
}

}  // namespace membound
