// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/layer_norm.hpp"

namespace membound {

// Residual addition and layer_norm in one pass: sum = x + residual is written to residual_out, and
// out is layer_norm of the sum. The sum is float32 (float64 where x or residual is): mean, rstd and
// out come from it before it is rounded for residual_out.
//
// x             as in layer_norm
// residual      x's shape and device, any floating dtype, any strides
// out           as in layer_norm; may be x or residual itself
// residual_out  x's shape and device, any floating dtype; may be x or residual itself, but not out
// The rest, and the guarantees, as in layer_norm.
MEMBOUND_API void add_layer_norm(const ConstTensorView& x, const ConstTensorView& residual,
                                 const ConstTensorView* weight, const ConstTensorView* bias,
                                 const LayerNormOptions& options, const TensorView& out,
                                 const TensorView& residual_out, const TensorView* mean,
                                 const TensorView* rstd, StreamView stream);

// The same on host arrays, staged through a GPU in chunks as in layer_norm.
MEMBOUND_API void add_layer_norm(const ConstTensorView& x, const ConstTensorView& residual,
                                 const ConstTensorView* weight, const ConstTensorView* bias,
                                 const LayerNormOptions& options, const TensorView& out,
                                 const TensorView& residual_out, const TensorView* mean,
                                 const TensorView* rstd, Device staging_device);

}  // namespace membound
