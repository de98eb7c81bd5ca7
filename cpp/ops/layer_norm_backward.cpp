// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "membound/ops/layer_norm_backward.hpp"

#include "ops/rms_norm_backward.hpp"

namespace membound {

void layer_norm_backward(const ConstTensorView& dy, const ConstTensorView& x,
                         const ConstTensorView* weight, const ConstTensorView& mean,
                         const ConstTensorView& rstd, const LayerNormBackwardOptions& options,
                         const TensorView* dx, const TensorView* dweight, const TensorView* dbias,
                         const TensorView* workspace, StreamView stream) {
  run_rms_norm_backward({"layer_norm_backward",
                         "x",
                         dy,
                         nullptr,
                         x,
                         weight,
                         &mean,
                         rstd,
                         {options.weight_offset, Rounding::kOnce, options.accumulate},
                         dx,
                         dweight,
                         dbias,
                         workspace},
                        stream);
}

std::int64_t layer_norm_backward_workspace(const ConstTensorView& x) {
  return gradient_workspace(x, /*centred=*/true);
}

}  // namespace membound
