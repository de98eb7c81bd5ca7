// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/rms_norm_backward.hpp"

namespace membound {

struct RmsNormGatedBackwardOptions {
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  bool norm_before_gate = true;
  bool accumulate = false;  // dweight += instead of =
};

// The gradients of rms_norm_gated. With silu'(z) = s * (1 + z * (1 - s)), s = 1 / (1 + exp(-z)):
//
//   norm_before_gate   n = rms_norm(x), dx and dweight are those of rms_norm for dy * silu(z),
//                      dz = dy * n * silu'(z)
//   otherwise          u = x * silu(z), du and dweight are those of rms_norm(u) for dy,
//                      dx = du * silu(z),   dz = du * x * silu'(z)
//
// dy, x, weight, rstd, dweight, workspace, stream: as in rms_norm_backward; rstd is what
//          rms_norm_gated returned, the workspace of rms_norm_gated_backward_workspace(x, heads,
//          mixed) bytes
// z        what the forward read
// dx, dz   x's shape and device, any floating dtypes, or nullptr when not wanted; may be dy, x or z
//          itself, not each other
//
// Throws InvalidArgument, TypeMismatch, OutOfMemory, CudaError.
MEMBOUND_API void rms_norm_gated_backward(const ConstTensorView& dy, const ConstTensorView& x,
                                          const ConstTensorView& z, const ConstTensorView* weight,
                                          const ConstTensorView& rstd,
                                          const RmsNormGatedBackwardOptions& options,
                                          const TensorView* dx, const TensorView* dz,
                                          const TensorView* dweight, const TensorView* workspace,
                                          StreamView stream);

// As rms_norm_backward_workspace.
MEMBOUND_API std::int64_t rms_norm_gated_backward_workspace(const ConstTensorView& x,
                                                            std::int64_t heads = 1,
                                                            bool mixed = false);

}  // namespace membound
