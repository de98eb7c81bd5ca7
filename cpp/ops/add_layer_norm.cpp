// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_layer_norm.hpp"

#include "membound/norm_call.hpp"

namespace membound {

namespace {

template <class Where>
void run(const ConstTensorView& x, const ConstTensorView& residual, const ConstTensorView* weight,
         const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
         const TensorView& residual_out, const TensorView* mean, const TensorView* rstd,
         Where where) {
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
       where);
}

}  // namespace

void add_layer_norm(const ConstTensorView& x, const ConstTensorView& residual,
                    const ConstTensorView* weight, const ConstTensorView* bias,
                    const LayerNormOptions& options, const TensorView& out,
                    const TensorView& residual_out, const TensorView* mean, const TensorView* rstd,
                    StreamView stream) {
  run(x, residual, weight, bias, options, out, residual_out, mean, rstd, stream);
}

void add_layer_norm(const ConstTensorView& x, const ConstTensorView& residual,
                    const ConstTensorView* weight, const ConstTensorView* bias,
                    const LayerNormOptions& options, const TensorView& out,
                    const TensorView& residual_out, const TensorView* mean, const TensorView* rstd,
                    Device staging_device) {
  run(x, residual, weight, bias, options, out, residual_out, mean, rstd, staging_device);
}

}  // namespace membound
