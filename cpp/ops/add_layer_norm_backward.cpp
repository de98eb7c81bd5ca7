// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_layer_norm_backward.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void add_layer_norm_backward(const ConstTensorView& dy, const ConstTensorView* dresidual_out,
                             const ConstTensorView& residual_out, const ConstTensorView* weight,
                             const ConstTensorView& mean, const ConstTensorView& rstd,
                             const LayerNormBackwardOptions& options, const TensorView* dx,
                             const TensorView* dresidual, const TensorView* dweight,
                             const TensorView* dbias, const TensorView* workspace,
                             StreamView stream) {
  norm_backward({.op = "add_layer_norm_backward",
                 .x_name = "residual_out",
                 .dy = &dy,
                 .dsum = dresidual_out,
                 .x = &residual_out,
                 .weight = weight,
                 .mean = &mean,
                 .rstd = &rstd,
                 .options = {options.weight_offset, Rounding::kOnce, options.accumulate},
                 .is_added = true,
                 .dx = dx,
                 .dresidual = dresidual,
                 .dweight = dweight,
                 .dbias = dbias,
                 .workspace = workspace},
                stream);
}

}  // namespace membound
