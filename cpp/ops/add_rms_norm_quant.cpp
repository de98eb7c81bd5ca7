// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm_quant.hpp"

#include "membound/norm_call.hpp"

namespace membound {

void add_rms_norm_quant(const ConstTensorView& x, const ConstTensorView& residual,
                        const ConstTensorView* weight, const RmsNormQuantOptions& options,
                        const TensorView& out, const TensorView& residual_out,
                        const ConstTensorView* static_scale, const TensorView* scale,
                        StreamView stream) {
  norm_quant({.op = "add_rms_norm_quant",
              .x = &x,
              .residual = &residual,
              .weight = weight,
              .static_scale = static_scale,
              .options = options,
              .out = &out,
              .residual_out = &residual_out,
              .scale = scale},
             stream);
}

}  // namespace membound
