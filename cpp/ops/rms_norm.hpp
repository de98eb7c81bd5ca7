// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/stream.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols, no tensors, no user errors. With
// a residual, rows of x + residual are normalised and written to residual_out too (add_rms_norm).
struct RmsNormProblem {
  const void* x;
  const void* residual;  // null: none
  const void* weight;    // null: none
  void* out;             // may be x or residual: in place
  void* residual_out;    // there is one with a residual; may be x or residual, not out
  void* rstd;            // null: not wanted; else accumulate_dtype(dtype)
  DType dtype;           // of x, residual, out and residual_out
  DType weight_dtype;    // equal to dtype when there is no weight
  Rounding rounding;
  std::int64_t rows;                      // at least 1
  std::int64_t cols;                      // at least 1
  RowLayout x_rows, out_rows, rstd_rows;  // where each row starts, in elements
  RowLayout residual_rows, residual_out_rows;
  std::int64_t x_col_stride, out_col_stride, weight_stride;  // 1 when cols is 1
  std::int64_t residual_col_stride, residual_out_col_stride;
  double eps;
  double weight_offset;
};

// What rms_norm and add_rms_norm have in common; op names the caller's function in every error.
void check_rms_norm(const char* op, const ConstTensorView& x, const ConstTensorView* weight,
                    const RmsNormOptions& options, const TensorView& out, const TensorView* rstd);
RmsNormProblem rms_norm_problem(const char* op, const ConstTensorView& x,
                                const ConstTensorView* weight, const RmsNormOptions& options,
                                const TensorView& out, const TensorView* rstd);
void run_rms_norm(const char* op, const RmsNormProblem& problem, Device device, StreamView stream);

namespace cpu {
void rms_norm(const RmsNormProblem& problem);
}
namespace cuda {
void rms_norm(const RmsNormProblem& problem, StreamView stream);
}

}  // namespace membound
