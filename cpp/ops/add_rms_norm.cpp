// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  StreamView stream) {
  norm({.op = "add_rms_norm",
        .x = &x,
        .residual = &residual,
        .weight = weight,
        .options = options,
        .out = &out,
        .residual_out = &residual_out,
        .rstd = rstd},
       stream);
}

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  Device staging_device) {
  norm({.op = "add_rms_norm",
        .x = &x,
        .residual = &residual,
        .weight = weight,
        .options = options,
        .out = &out,
        .residual_out = &residual_out,
        .rstd = rstd},
       staging_device);
}

}  // namespace membound
