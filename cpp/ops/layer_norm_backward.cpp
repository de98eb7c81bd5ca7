// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/layer_norm_backward.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void layer_norm_backward(const ConstTensorView& dy, const ConstTensorView& x,
                         const ConstTensorView* weight, const ConstTensorView& mean,
                         const ConstTensorView& rstd, const LayerNormBackwardOptions& options,
                         const TensorView* dx, const TensorView* dweight, const TensorView* dbias,
                         const TensorView* workspace, StreamView stream) {
  norm_backward({.op = "layer_norm_backward",
                 .x_name = "x",
                 .dy = &dy,
                 .x = &x,
                 .weight = weight,
                 .mean = &mean,
                 .rstd = &rstd,
                 .options = {options.weight_offset, Rounding::kOnce, options.accumulate},
                 .dx = dx,
                 .dweight = dweight,
                 .dbias = dbias,
                 .workspace = workspace},
                stream);
}

std::int64_t layer_norm_backward_workspace(const ConstTensorView& x, std::int64_t heads,
                                           bool mixed) {
  return norm_backward_workspace(x, heads, /*centred=*/true, /*gated=*/false, mixed);
}

}  // namespace membound
