// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/cross_entropy.hpp"

namespace membound {

// The gradient of cross_entropy, from what it read and its lse. With l and y as there:
//
//   dl      = dloss * (exp(l - lse) * (1 + 2 * z_loss * lse)
//                      - label_smoothing / cols - (1 - label_smoothing) * [column == y])
//   dlogits = dl * (1 - (l / softcap)^2)
//
// in float32 (float64 for float64), rounded once: the bits that cross_entropy gives with dlogits.
//
// dloss             the gradient of loss: labels' shape, accumulate_dtype(logits.dtype), any
//                   strides; nullptr: options.dloss
// logits, labels,   what the forward read and wrote
// lse, options
// dlogits           logits' shape, dtype and device; may be logits itself
// stream            where the work is queued; ignored on the CPU
//
// Throws InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void cross_entropy_backward(const ConstTensorView* dloss,
                                         const ConstTensorView& logits,
                                         const ConstTensorView& labels, const ConstTensorView& lse,
                                         const CrossEntropyOptions& options,
                                         const TensorView& dlogits, StreamView stream);

}  // namespace membound
