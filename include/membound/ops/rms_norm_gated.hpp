// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/rms_norm.hpp"

namespace membound {

struct RmsNormGatedOptions {
  double eps = 1e-6;
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  bool norm_before_gate = true;
};

// rms_norm with a gate (Dao and Gu 2024, arXiv:2405.21060, the output of a Mamba-2 block), where
// silu(z) = z / (1 + exp(-z)):
//
//   norm_before_gate   out = rms_norm(x) * silu(z)    Qwen3-Next's and gated attention's
//   otherwise          out = rms_norm(x * silu(z))    Hugging Face's Mamba-2
//
// The gate and the product are float32 (float64 for float64) and not rounded in between, except
// that Rounding::kBeforeWeight rounds where the modules do: the normalised row and, where the gate
// comes after it, its product with the weight.
//
// x     as in rms_norm
// z     x's shape and device, any floating dtype, any strides
// out   as in rms_norm; may be x or z itself
// rstd  as in rms_norm, of the row that is normalised: x, or x * silu(z); float64 where x or z is
// The rest, and the guarantees, as in rms_norm.
MEMBOUND_API void rms_norm_gated(const ConstTensorView& x, const ConstTensorView& z,
                                 const ConstTensorView* weight, const RmsNormGatedOptions& options,
                                 const TensorView& out, const TensorView* rstd, StreamView stream);

// The same on host arrays, staged through a GPU in chunks as in rms_norm.
MEMBOUND_API void rms_norm_gated(const ConstTensorView& x, const ConstTensorView& z,
                                 const ConstTensorView* weight, const RmsNormGatedOptions& options,
                                 const TensorView& out, const TensorView* rstd,
                                 Device staging_device);

}  // namespace membound
