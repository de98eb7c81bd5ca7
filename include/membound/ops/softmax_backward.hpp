// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/softmax.hpp"

namespace membound {

// The gradient of softmax, from its result:
//
//   dx = scale * y * (dy - sum(dy * y))
//
// with the sum over the last axis, in float32 (float64 for float64), rounded once. With scale 1 it
// is that of a mask of x's shape.
//
// dy      the gradient of the result: y's shape, dtype and device, with any strides
// y       the result: (..., cols), float16, bfloat16, float32 or float64, with any strides
// scale   what the forward multiplied x by; finite
// dx      y's shape, dtype and device; may be dy or y itself
// stream  where the work is queued; ignored on the CPU
//
// Throws InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void softmax_backward(const ConstTensorView& dy, const ConstTensorView& y,
                                   double scale, const TensorView& dx, StreamView stream);

}  // namespace membound
