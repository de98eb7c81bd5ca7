// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/layer_norm.hpp"

#include "membound/norm_call.hpp"

namespace membound {

namespace {

template <class Where>
void run(const ConstTensorView& x, const ConstTensorView* weight, const ConstTensorView* bias,
         const LayerNormOptions& options, const TensorView& out, const TensorView* mean,
         const TensorView* rstd, Where where) {
  norm({.op = "layer_norm",
        .x = &x,
        .weight = weight,
        .bias = bias,
        .options = {options.eps, options.weight_offset, Rounding::kOnce},
        .centred = true,
        .out = &out,
        .mean = mean,
        .rstd = rstd},
       where);
}

}  // namespace

void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
                const TensorView* mean, const TensorView* rstd, StreamView stream) {
  run(x, weight, bias, options, out, mean, rstd, stream);
}

void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
                const TensorView* mean, const TensorView* rstd, Device staging_device) {
  run(x, weight, bias, options, out, mean, rstd, staging_device);
}

}  // namespace membound
