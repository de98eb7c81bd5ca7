// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/layer_norm.hpp"

#include "ops/rms_norm.hpp"

namespace membound {

void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
                const TensorView* mean, const TensorView* rstd, StreamView stream) {
  run_rms_norm({"layer_norm",
                x,
                nullptr,
                weight,
                bias,
                {options.eps, options.weight_offset, Rounding::kOnce},
                true,
                out,
                nullptr,
                mean,
                rstd},
               stream);
}

void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                const ConstTensorView* bias, const LayerNormOptions& options, const TensorView& out,
                const TensorView* mean, const TensorView* rstd, Device staging_device) {
  run_rms_norm({"layer_norm",
                x,
                nullptr,
                weight,
                bias,
                {options.eps, options.weight_offset, Rounding::kOnce},
                true,
                out,
                nullptr,
                mean,
                rstd},
               staging_device);
}

}  // namespace membound
