// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_layer_norm.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void add_layer_norm(const ConstTensorView& x, const ConstTensorView& residual,
                    const ConstTensorView* weight, const ConstTensorView* bias,
                    const LayerNormOptions& options, const TensorView& out,
                    const TensorView& residual_out, const TensorView* mean, const TensorView* rstd,
                    StreamView stream) {
  norm({.op = "add_layer_norm",
        .x = &x,
        .residual = &residual,
        .weight = weight,
        .bias = bias,
        .options = {options.eps, options.weight_offset, Rounding::kOnce},
        .centred = true,
        .out = &out,
        .residual_out = &residual_out,
        .mean = mean,
        .rstd = rstd},
       stream);
}

void add_layer_norm(const ConstTensorView& x, const ConstTensorView& residual,
                    const ConstTensorView* weight, const ConstTensorView* bias,
                    const LayerNormOptions& options, const TensorView& out,
                    const TensorView& residual_out, const TensorView* mean, const TensorView* rstd,
                    Device staging_device) {
  norm({.op = "add_layer_norm",
        .x = &x,
        .residual = &residual,
        .weight = weight,
        .bias = bias,
        .options = {options.eps, options.weight_offset, Rounding::kOnce},
        .centred = true,
        .out = &out,
        .residual_out = &residual_out,
        .mean = mean,
        .rstd = rstd},
       staging_device);
}

}  // namespace membound
