// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/gated_activation.hpp"

namespace membound {

// The gradients of gated_activation, recomputed from what it read. With g = min(gate, limit) and
// u = clamp(up, -limit, limit) + up_offset:
//
//   dgate = dy * row_scale * act'(g) * u   0 where gate > limit
//   dup   = dy * row_scale * act(g)        0 where |up| > limit
//
// in float32 (float64 for float64), each rounded once.
//
// dy                         the gradient of out: gate's shape, dtype and device, with any strides
// gate, up, row_scale,       what the forward read; row_scale has no gradient here
// options
// dgate, dup                 gate's shape, dtype and device, or nullptr when not wanted; may be dy,
//                            gate or up itself, not each other. dup needs up
// stream                     where the work is queued; ignored on the CPU
//
// Throws InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void gated_activation_backward(const ConstTensorView& dy, const ConstTensorView& gate,
                                            const ConstTensorView* up,
                                            const ConstTensorView* row_scale,
                                            const GatedActivationOptions& options,
                                            const TensorView* dgate, const TensorView* dup,
                                            StreamView stream);

}  // namespace membound
