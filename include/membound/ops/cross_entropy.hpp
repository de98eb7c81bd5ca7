// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// How the losses of rows are reduced. kMean divides their sum by that of their labels' weights.
enum class Reduction : std::uint8_t { kNone, kSum, kMean };

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0.0;                              // from 0 to 1
  double z_loss = 0.0;                                       // finite, not negative
  double softcap = std::numeric_limits<double>::infinity();  // above 0; infinity: none
  double dloss = 1.0;  // of every row, if there is no array of them; finite
  Reduction reduction = Reduction::kNone;
  // Checks labels on the CPU, and throws if one is neither ignored nor a column.
  bool validate = false;
};

// Outputs besides the loss; nullptr: not wanted. "Rows" have labels' shape; numbers are of
// accumulate_dtype(logits.dtype).
struct CrossEntropyResults {
  const TensorView* lse = nullptr;          // rows and a last axis of 2: lse is the sum of both
  const TensorView* z_loss = nullptr;       // as loss: the part of it that is the z loss
  const TensorView* predictions = nullptr;  // rows, of labels' dtype
  const TensorView* dlogits = nullptr;      // logits' shape, dtype and device; may be logits itself
  // With a reduction: the rows it reduces. row_losses is then required, and row_z_losses with
  // z_loss.
  const TensorView* row_losses = nullptr;
  const TensorView* row_z_losses = nullptr;
  const TensorView* entropy = nullptr;  // rows: -sum(p * log(p)) of p = exp(l - lse)
};

// Of each row of logits, with l = softcap * tanh(logits / softcap), or logits, its label y, and w
// the weights of classes, or 1,
//
//   lse  = log(sum(exp(l)))
//   loss = (1 - label_smoothing) * w[y] * (lse - l[y])
//          + label_smoothing / cols * sum(w * (lse - l)) + z_loss * w[y] * lse^2
//
// their sum or mean if asked for (the mean is the sum divided by that of w[y], as in torch), and in
// the same pass, where it is wanted, the gradient of sum(dloss * loss), see cross_entropy_backward.
// In float32 (float64 for float64), rounded once.
//
// logits   (..., cols) with at least one axis and cols >= 1; float16, bfloat16, float32 or float64;
//          any strides
// labels   logits' shape less the last axis; int32 or int64, any strides
// weight   (cols,), floating, any stride; nullptr: all are 1
// dloss    as loss, any strides; nullptr: options.dloss
// loss     accumulate_dtype(logits.dtype), labels' shape, or () with a reduction
// also     the other outputs
// stream   where the work is queued; ignored on the CPU
//
// lse is stored as the largest l and the logarithm of the sum relative to it: rounded to one
// number, it would cost the gradient its digits where logits are large. A prediction is the column
// of the largest logit, the first of several; NaN counts as larger than any.
//
// A row whose label is not a column is not read. If the label is ignore_index, its loss, lse, z
// loss, entropy and gradient are 0; otherwise they are NaN, as is its weight. Its prediction is -1.
//
// An array that is written must not overlap another in part. Zero rows: their sum is 0, their mean
// NaN. Throws InvalidArgument, TypeMismatch, CudaError.
MEMBOUND_API void cross_entropy(const ConstTensorView& logits, const ConstTensorView& labels,
                                const ConstTensorView* weight, const ConstTensorView* dloss,
                                const CrossEntropyOptions& options, const TensorView& loss,
                                const CrossEntropyResults& also, StreamView stream);

}  // namespace membound
