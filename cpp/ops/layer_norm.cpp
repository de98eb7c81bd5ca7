// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/layer_norm.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
                const TensorView* mean, const TensorView* rstd, StreamView stream) {
  norm({.op = "layer_norm",
        .x = &x,
        .weight = weight,
        .bias = bias,
        .options = {options.eps, options.weight_offset, Rounding::kOnce},
        .centred = true,
        .out = &out,
        .mean = mean,
        .rstd = rstd},
       stream);
}

void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
                const TensorView* mean, const TensorView* rstd, Device staging_device) {
  norm({.op = "layer_norm",
        .x = &x,
        .weight = weight,
        .bias = bias,
        .options = {options.eps, options.weight_offset, Rounding::kOnce},
        .centred = true,
        .out = &out,
        .mean = mean,
        .rstd = rstd},
       staging_device);
}

}  // namespace membound
