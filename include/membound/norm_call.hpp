// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/rms_norm.hpp"
#include "membound/ops/rms_norm_backward.hpp"
#include "membound/ops/rms_norm_quant.hpp"

// Every form of the norms as one call, for bindings and for code that picks the form at run time.
// The functions of membound/ops fill these structs; shapes, dtypes, aliasing and errors are theirs.
namespace membound {

// rms_norm; centred layer_norm; with a residual the add_ forms; with a gate rms_norm_gated.
struct NormCall {
  const char* op = "norm";  // the name in error texts
  const ConstTensorView* x = nullptr;
  const ConstTensorView* residual = nullptr;  // comes with residual_out, and without a gate
  const ConstTensorView* gate = nullptr;      // "z" in error texts
  const ConstTensorView* weight = nullptr;
  const ConstTensorView* bias = nullptr;
  RmsNormOptions options;
  bool centred = false;
  bool norm_before_gate = true;
  const TensorView* out = nullptr;
  const TensorView* residual_out = nullptr;
  const TensorView* mean = nullptr;  // centred
  const TensorView* rstd = nullptr;
};
MEMBOUND_API void norm(const NormCall& call, StreamView stream);
MEMBOUND_API void norm(const NormCall& call, Device staging_device);

// The gradients; of layer_norm where there is a mean. What is nullptr is not there, or not wanted.
struct NormBackwardCall {
  const char* op = "norm_backward";
  const char* x_name = "x";  // "residual_out" in the add_ forms
  const ConstTensorView* dy = nullptr;
  const ConstTensorView* dsum = nullptr;  // "dresidual_out"
  const ConstTensorView* x = nullptr;
  const ConstTensorView* gate = nullptr;
  const ConstTensorView* weight = nullptr;
  const ConstTensorView* mean = nullptr;
  const ConstTensorView* rstd = nullptr;
  RmsNormBackwardOptions options;
  bool is_added = false;  // of an add_ form, also without dsum
  bool norm_before_gate = true;
  const TensorView* dx = nullptr;
  const TensorView* dresidual = nullptr;  // dx in a dtype of its own
  const TensorView* dgate = nullptr;      // "dz"
  const TensorView* dweight = nullptr;
  const TensorView* dbias = nullptr;
  const TensorView* workspace = nullptr;
};
MEMBOUND_API void norm_backward(const NormBackwardCall& call, StreamView stream);
// Bytes of workspace that the call takes on a GPU; 0 where it takes none. x and weight may be any.
MEMBOUND_API std::int64_t norm_backward_workspace(const NormBackwardCall& call);
// The same of an x of this shape, dtype and device; heads and mixed as in
// rms_norm_backward_workspace.
MEMBOUND_API std::int64_t norm_backward_workspace(const ConstTensorView& x, std::int64_t heads,
                                                  bool centred, bool gated, bool mixed);

// rms_norm_quant, with a residual add_rms_norm_quant.
struct NormQuantCall {
  const char* op = "norm_quant";
  const ConstTensorView* x = nullptr;
  const ConstTensorView* residual = nullptr;
  const ConstTensorView* weight = nullptr;
  const ConstTensorView* static_scale = nullptr;
  RmsNormQuantOptions options;
  const TensorView* out = nullptr;
  const TensorView* residual_out = nullptr;
  const TensorView* scale = nullptr;
};
MEMBOUND_API void norm_quant(const NormQuantCall& call, StreamView stream);

}  // namespace membound
