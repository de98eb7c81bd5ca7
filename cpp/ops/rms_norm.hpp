// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/heads.hpp"
#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rms_norm.hpp"
#include "membound/stream.hpp"
#include "ops/rms_norm_generic.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols, no tensors, no user errors. With
// a residual, rows of x + residual are normalised and also written to residual_out (add_rms_norm).
// Centred rows subtract their mean first (layer_norm). With a gate, the result or first x is
// multiplied by silu(gate) (rms_norm_gated); then there is no residual.
struct RmsNormProblem {
  const void* x;
  const void* residual;  // null: none
  const void* gate;      // null: none
  const void* weight;    // null: none
  const void* bias;      // null: none
  void* out;             // may be x, residual or gate: in place
  void* residual_out;    // null exactly if residual is; may be x or residual, not out
  void* mean;            // null: not wanted, or not centred; else accumulate_dtype(dtype)
  void* rstd;            // null: not wanted; else accumulate_dtype(dtype)
  DType dtype;           // of x, residual, gate, out and residual_out
  DType weight_dtype;    // equal to dtype if there is no weight
  DType bias_dtype;      // equal to dtype if there is no bias
  Rounding rounding;     // kOnce when centred
  bool centred;
  bool norm_before_gate;
  std::int64_t rows;                                 // at least 1
  std::int64_t cols;                                 // at least 1
  RowLayout x_rows, out_rows, mean_rows, rstd_rows;  // where each row starts, in elements
  RowLayout residual_rows, residual_out_rows, gate_rows;
  std::int64_t x_col_stride, out_col_stride, weight_stride, bias_stride;  // 1 when cols is 1
  std::int64_t residual_col_stride, residual_out_col_stride, gate_col_stride;
  // Row r uses weight and bias of head r % heads. 1 on the CPU, which handles one head at a time.
  std::int64_t heads;
  std::int64_t weight_head_stride, bias_head_stride;
  double eps;
  double weight_offset;

  // True for a weight (and bias, if any) of x's dtype and no options: the only case that GPU
  // kernels with low register pressure handle.
  bool is_plain() const {
    return weight != nullptr && weight_dtype == dtype && bias_dtype == dtype &&
           weight_offset == 0.0 && rounding == Rounding::kOnce;
  }
};

// The arguments of the user's call; op names the function in every error. Absent ones are null.
struct RmsNormCall {
  const char* op;
  const ConstTensorView& x;
  const ConstTensorView* residual = nullptr;
  const ConstTensorView* gate = nullptr;  // "z"
  const ConstTensorView* weight = nullptr;
  const ConstTensorView* bias = nullptr;
  RmsNormOptions options;
  bool centred = false;
  bool norm_before_gate = true;
  const TensorView& out;
  const TensorView* residual_out = nullptr;
  const TensorView* mean = nullptr;
  const TensorView* rstd = nullptr;

  // The number of heads of parameters of (heads, cols); 1 for (cols,).
  std::int64_t heads() const;
  // True if only the generic kernels support the call.
  bool is_generic() const;
  // The dtype of sums, mean and rstd: float64 if any input of rows is.
  DType accumulate() const;
};
// The input checks of all ops with this call type, and the problem of a checked call.
void check_norm_inputs(const RmsNormCall& call);
RmsNormProblem rms_norm_problem(const RmsNormCall& call);
GenericNormProblem generic_norm_problem(const RmsNormCall& call);

// Calls body(call) for each head alone, with parameters of (cols,).
template <class Body>
void each_head(const RmsNormCall& call, Body body) {
  const std::int64_t heads = call.heads();
  if (heads == 1) return body(call);
  for (std::int64_t head = 0; head < heads; ++head) {
    const auto residual = one_head(call.residual, -2, head), gate = one_head(call.gate, -2, head);
    const auto weight = one_head(call.weight, -2, head), bias = one_head(call.bias, -2, head);
    const auto residual_out = one_head(call.residual_out, -2, head);
    const auto mean = one_head_of_rows(call.mean, call.x.rank, head);
    const auto rstd = one_head_of_rows(call.rstd, call.x.rank, head);
    body({.op = call.op,
          .x = select(call.x, -2, head),
          .residual = residual,
          .gate = gate,
          .weight = weight,
          .bias = bias,
          .options = call.options,
          .centred = call.centred,
          .norm_before_gate = call.norm_before_gate,
          .out = select(call.out, -2, head),
          .residual_out = residual_out,
          .mean = mean,
          .rstd = rstd});
  }
}
void run_rms_norm(const RmsNormCall& call, StreamView stream);
void run_rms_norm(const RmsNormCall& call, Device staging_device);

namespace cpu {
void rms_norm(const RmsNormProblem& problem);
}
namespace cuda {
void rms_norm(const RmsNormProblem& problem, StreamView stream);
}

}  // namespace membound
