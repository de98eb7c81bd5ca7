// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ops/cross_entropy.hpp"

namespace membound {

// The entropies that the forward wrote and their gradient, both of labels' shape and
// accumulate_dtype(logits.dtype), with any strides; or neither.
struct EntropyGradient {
  const ConstTensorView* entropy = nullptr;
  const ConstTensorView* dentropy = nullptr;
};

// The gradient of cross_entropy, from what it read and its lse. With l, y and w as there:
//
//   dl      = dloss * (exp(l - lse) * ((1 - label_smoothing) * w[y]
//                                      + label_smoothing / cols * sum(w) + 2 * z_loss * w[y] * lse)
//                      - label_smoothing / cols * w - (1 - label_smoothing) * w[y] * [column == y])
//             - dentropy * exp(l - lse) * (l - lse + entropy), with entropies
//   dlogits = dl * (1 - (l / softcap)^2)
//
// in float32 (float64 for float64), rounded once: the bits that cross_entropy gives with dlogits.
//
// dloss             the gradient of loss: of its shape, accumulate_dtype(logits.dtype), any
//                   strides; nullptr: options.dloss
// logits, labels,   what the forward read
// weight, options
// lse               what it wrote; or of labels' shape: in one number, which costs digits where
//                   logits are large
// dlogits           logits' shape, dtype and device; may be logits itself
// scale             for a mean: scratch for one number, (), accumulate_dtype(logits.dtype);
//                   nullptr: allocated if it is needed
// of_entropy        the gradient of entropies, to be added
// stream            where the work is queued; ignored on the CPU
//
// Rows whose label is ignore_index are 0, rows whose label is no column NaN: with a mean all rows
// then are. Throws InvalidArgument, TypeMismatch, OutOfMemory, CudaError.
MEMBOUND_API void cross_entropy_backward(const ConstTensorView* dloss,
                                         const ConstTensorView& logits,
                                         const ConstTensorView& labels, const ConstTensorView& lse,
                                         const ConstTensorView* weight,
                                         const CrossEntropyOptions& options,
                                         const TensorView& dlogits, const TensorView* scale,
                                         StreamView stream, const EntropyGradient& of_entropy = {});

}  // namespace membound
