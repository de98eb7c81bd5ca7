// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm_backward.hpp"

#include "ops/rms_norm_backward.hpp"

namespace membound {

void add_rms_norm_backward(const ConstTensorView& dy, const ConstTensorView& dresidual_out,
                           const ConstTensorView& residual_out, const ConstTensorView* weight,
                           const ConstTensorView& rstd, const RmsNormBackwardOptions& options,
                           const TensorView* dx, const TensorView* dweight,
                           const TensorView* workspace, StreamView stream) {
  run_rms_norm_backward({"add_rms_norm_backward", "residual_out", dy, &dresidual_out, residual_out,
                         weight, nullptr, rstd, options, dx, dweight, nullptr, workspace},
                        stream);
}

}  // namespace membound
