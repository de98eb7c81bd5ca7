// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/add_rms_norm.hpp"

#include "ops/rms_norm.hpp"

namespace membound {

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  StreamView stream) {
  run_rms_norm({"add_rms_norm", x, &residual, weight, nullptr, options, false, out, &residual_out,
                nullptr, rstd},
               stream);
}

void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                  const ConstTensorView* weight, const RmsNormOptions& options,
                  const TensorView& out, const TensorView& residual_out, const TensorView* rstd,
                  Device staging_device) {
  run_rms_norm({"add_rms_norm", x, &residual, weight, nullptr, options, false, out, &residual_out,
                nullptr, rstd},
               staging_device);
}

}  // namespace membound
