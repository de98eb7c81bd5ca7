// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm_backward.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void add_rms_norm_backward(const ConstTensorView& dy, const ConstTensorView* dresidual_out,
                           const ConstTensorView& residual_out, const ConstTensorView* weight,
                           const ConstTensorView& rstd, const RmsNormBackwardOptions& options,
                           const TensorView* dx, const TensorView* dresidual,
                           const TensorView* dweight, const TensorView* workspace,
                           StreamView stream) {
  norm_backward({.op = "add_rms_norm_backward",
                 .x_name = "residual_out",
                 .dy = &dy,
                 .dsum = dresidual_out,
                 .x = &residual_out,
                 .weight = weight,
                 .rstd = &rstd,
                 .options = options,
                 .is_added = true,
                 .dx = dx,
                 .dresidual = dresidual,
                 .dweight = dweight,
                 .workspace = workspace},
                stream);
}

}  // namespace membound
