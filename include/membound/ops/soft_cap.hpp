// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// Keeps logits between -cap and cap, as Gemma 2 and Grok do. Each element of
//
//   out = cap * tanh(x / cap)
//
// in float32 (float64 for float64), rounded once.
//
// x       at least one axis; float16, bfloat16, float32 or float64; any strides
// cap     above 0; finite
// out     x's shape, dtype and device; may be x itself
// stream  where the work is queued; ignored on the CPU
//
// An array that is written must not overlap another in part. No elements: nothing happens. Throws
// InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void soft_cap(const ConstTensorView& x, double cap, const TensorView& out,
                           StreamView stream);

// The gradient, from x. Each element of
//
//   dx = dy * (1 - tanh(x / cap)^2)
//
// dy  the gradient of the result: x's shape, dtype and device, with any strides
// dx  x's shape, dtype and device; may be dy or x itself
//
// Everything else is as above. A slope below 1e-34 (1e-303 for float64) may be taken for 0.
MEMBOUND_API void soft_cap_backward(const ConstTensorView& dy, const ConstTensorView& x, double cap,
                                    const TensorView& dx, StreamView stream);

}  // namespace membound
