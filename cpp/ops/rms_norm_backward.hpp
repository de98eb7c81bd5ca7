// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"
#include "membound/dtype.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/stream.hpp"

namespace membound {

// What both back ends receive: checked, flattened to rows x cols. dsum is add_rms_norm_backward's
// second gradient, added to dx. Centred, it is the gradient of layer_norm. At least one of dx,
// dweight and dbias is wanted.
struct RmsNormBackwardProblem {
  const void* dy;
  const void* x;
  const void* dsum;    // null: none
  const void* weight;  // null: none
  const void* mean;    // of the centred form; accumulate_dtype(dtype)
  const void* rstd;    // accumulate_dtype(dtype)
  void* dx;            // null: not wanted; may be dy, x or dsum
  void* dweight;       // null: not wanted
  void* dbias;         // null: not wanted, or not centred
  void* workspace;     // GPU with dweight or dbias: as many bytes as the op's _workspace says
  DType dtype;         // of dy, x, dsum and dx
  DType weight_dtype;  // equal to dtype when there is no weight
  DType dweight_dtype;
  DType dbias_dtype;
  Rounding rounding;  // kOnce when centred
  bool accumulate;
  bool centred;
  std::int64_t rows;  // 0 only with dweight or dbias, which are then zero
  std::int64_t cols;  // at least 1
  RowLayout dy_rows, x_rows, dsum_rows, dx_rows, mean_rows, rstd_rows;       // in elements
  std::int64_t dy_col_stride, x_col_stride, dsum_col_stride, dx_col_stride;  // 1 when cols is 1
  std::int64_t weight_stride, dweight_stride, dbias_stride;
  double weight_offset;
};

// What the user's call brought; op and x_name are for error texts. What is null is not there.
struct RmsNormBackwardCall {
  const char* op;
  const char* x_name;
  const ConstTensorView& dy;
  const ConstTensorView* dsum;  // "dresidual_out"
  const ConstTensorView& x;
  const ConstTensorView* weight;
  const ConstTensorView* mean;
  const ConstTensorView& rstd;
  RmsNormBackwardOptions options;
  const TensorView* dx;
  const TensorView* dweight;
  const TensorView* dbias;
  const TensorView* workspace;
};
void run_rms_norm_backward(const RmsNormBackwardCall& call, StreamView stream);
// Bytes of workspace of the plain and the centred form.
std::int64_t gradient_workspace(const ConstTensorView& x, bool centred);

namespace cpu {
void rms_norm_backward(const RmsNormBackwardProblem& problem);
}
namespace cuda {
void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream);
}

}  // namespace membound
