// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rms_norm_gated_backward.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void rms_norm_gated_backward(const ConstTensorView& dy, const ConstTensorView& x,
                             const ConstTensorView& z, const ConstTensorView* weight,
                             const ConstTensorView& rstd,
                             const RmsNormGatedBackwardOptions& options, const TensorView* dx,
                             const TensorView* dz, const TensorView* dweight,
                             const TensorView* workspace, StreamView stream) {
  norm_backward({.op = "rms_norm_gated_backward",
                 .x_name = "x",
                 .dy = &dy,
                 .x = &x,
                 .gate = &z,
                 .weight = weight,
                 .rstd = &rstd,
                 .options = {options.weight_offset, options.rounding, options.accumulate},
                 .norm_before_gate = options.norm_before_gate,
                 .dx = dx,
                 .dgate = dz,
                 .dweight = dweight,
                 .workspace = workspace},
                stream);
}

std::int64_t rms_norm_gated_backward_workspace(const ConstTensorView& x, std::int64_t heads,
                                               bool mixed) {
  return norm_backward_workspace(x, heads, /*centred=*/false, /*gated=*/true, mixed);
}

}  // namespace membound
