// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/rms_norm.hpp"

namespace membound {

// Residual addition and rms_norm in one pass:
//
//   sum = x + residual,   residual_out = sum,   out = sum * rstd * (weight + weight_offset)
//   rstd = 1 / sqrt(mean(sum * sum) + eps)
//
// The sum is float32 (float64 where x or residual is): rstd and out come from it before it is
// rounded for residual_out. A float32 residual stream with a 16-bit x is common.
//
// x             as in rms_norm
// residual      x's shape and device, any floating dtype, any strides
// out           as in rms_norm; may be x or residual itself
// residual_out  x's shape and device, any floating dtype; may be x or residual itself, but not out
// rstd          float64 where x or residual is
// The rest, and the guarantees, as in rms_norm.
MEMBOUND_API void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                               const ConstTensorView* weight, const RmsNormOptions& options,
                               const TensorView& out, const TensorView& residual_out,
                               const TensorView* rstd, StreamView stream);

// The same on host arrays, staged through a GPU in chunks as in rms_norm.
MEMBOUND_API void add_rms_norm(const ConstTensorView& x, const ConstTensorView& residual,
                               const ConstTensorView* weight, const RmsNormOptions& options,
                               const TensorView& out, const TensorView& residual_out,
                               const TensorView* rstd, Device staging_device);

}  // namespace membound
