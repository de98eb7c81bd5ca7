// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/layer_norm_backward.hpp"

namespace membound {

// The gradients of add_layer_norm in one pass. x and residual share one gradient:
//
//   dx = dresidual = dresidual_out + what layer_norm_backward gives for x = residual_out
//
// dy             gradient of out
// dresidual_out  gradient of residual_out: the shape and device of dy, any floating dtype, any
//                strides; nullptr: none
// residual_out   what the forward wrote
// dx             may be dy, dresidual_out or residual_out itself
// dresidual      the same gradient in the dtype of residual, where that is not x's; nullptr: not
//                wanted. As dx, which it may not overlap.
// The rest as in layer_norm_backward; so is the workspace.
MEMBOUND_API void add_layer_norm_backward(
    const ConstTensorView& dy, const ConstTensorView* dresidual_out,
    const ConstTensorView& residual_out, const ConstTensorView* weight, const ConstTensorView& mean,
    const ConstTensorView& rstd, const LayerNormBackwardOptions& options, const TensorView* dx,
    const TensorView* dresidual, const TensorView* dweight, const TensorView* dbias,
    const TensorView* workspace, StreamView stream);

}  // namespace membound
