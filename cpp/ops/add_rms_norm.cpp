// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm.hpp"

#include "membound/norm_call.hpp"

namespace membound {

namespace {

template <class Where>
void run(const ConstTensorView& x, const ConstTensorView& residual, const ConstTensorView* weight,
         const RmsNormOptions& options, const TensorView& out, const TensorView& residual_out,
         const TensorView* rstd, Where where) {
  norm({.op = "add_rms_norm",
        .x = &x,
        .residual = &residual,
        .weight = weight,
        .options = options,
        .out = &out,
        .residual_out = &residual_out,
        .rstd = rstd},
       where);
}

}  // namespace

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  StreamView stream) {
  run(x, residual, weight, options, out, residual_out, rstd, stream);
}

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  Device staging_device) {
  run(x, residual, weight, options, out, residual_out, rstd, staging_device);
}

}  // namespace membound
