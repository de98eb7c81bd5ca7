// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/rms_norm_gated.hpp"

#include "membound/norm_call.hpp"

namespace membound {

namespace {

template <class Where>
void run(const ConstTensorView& x, const ConstTensorView& z, const ConstTensorView* weight,
         const RmsNormGatedOptions& options, const TensorView& out, const TensorView* rstd,
         Where where) {
  norm({.op = "rms_norm_gated",
        .x = &x,
        .gate = &z,
        .weight = weight,
        .options = {options.eps, options.weight_offset, options.rounding},
        .norm_before_gate = options.norm_before_gate,
        .out = &out,
        .rstd = rstd},
       where);
}

}  // namespace

void rms_norm_gated(const ConstTensorView& x, const ConstTensorView& z,
                    const ConstTensorView* weight, const RmsNormGatedOptions& options,
                    const TensorView& out, const TensorView* rstd, StreamView stream) {
  run(x, z, weight, options, out, rstd, stream);
}

void rms_norm_gated(const ConstTensorView& x, const ConstTensorView& z,
                    const ConstTensorView* weight, const RmsNormGatedOptions& options,
                    const TensorView& out, const TensorView* rstd, Device staging_device) {
  run(x, z, weight, options, out, rstd, staging_device);
}

}  // namespace membound
