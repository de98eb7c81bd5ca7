// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;                              // from 0 to 1
  double z_loss = 0.0;                                       // finite, not negative
  double softcap = std::numeric_limits<double>::infinity();  // above 0; infinity: none
  double dloss = 1.0;  // of every row, where there is no array of them; finite
  // Look at labels on the CPU, and throw where one is neither ignored nor a column.
  bool validate = false;
};

// Of each row of logits, with l = softcap * tanh(logits / softcap), or logits, and its label y,
//
//   lse  = log(sum(exp(l)))
//   loss = (1 - label_smoothing) * (lse - l[y]) + label_smoothing * (lse - mean(l))
//          + z_loss * lse^2
//
// and in the same pass, where it is wanted, the gradient of sum(dloss * loss), see
// cross_entropy_backward. In float32 (float64 for float64), rounded once.
//
// logits   (..., cols) with at least one axis and cols >= 1; float16, bfloat16, float32 or float64;
//          any strides
// labels   logits' shape less the last axis; int32 or int64, any strides
// dloss    labels' shape, accumulate_dtype(logits.dtype), any strides; nullptr: options.dloss
// loss     labels' shape, accumulate_dtype(logits.dtype)
// lse      as loss, or nullptr when not wanted
// dlogits  logits' shape, dtype and device, or nullptr when not wanted; may be logits itself
// stream   where the work is queued; ignored on the CPU
//
// A row whose label is ignore_index, or no column, is not read: its loss, lse and gradient are 0.
//
// An array that is written must not overlap another in part. Zero rows: nothing happens. Throws
// InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void cross_entropy(const ConstTensorView& logits, const ConstTensorView& labels,
                                const ConstTensorView* dloss, const CrossEntropyOptions& options,
                                const TensorView& loss, const TensorView* lse,
                                const TensorView* dlogits, StreamView stream);

}  // namespace membound
