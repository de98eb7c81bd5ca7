// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

struct LayerNormOptions {
  double eps = 1e-6;  // torch's default is 1e-5
  double weight_offset = 0.0;
};

// Layer normalisation over the last axis (Ba, Kiros and Hinton 2016, arXiv:1607.06450):
//
//   mean = mean(x),   rstd = 1 / sqrt(mean((x - mean)^2) + eps)
//   out = (x - mean) * rstd * (weight + weight_offset) + bias
//
// x        (..., cols), float16, bfloat16, float32 or float64, any strides, any alignment
// weight   (cols,) of any of those dtypes, or (heads, cols) as in rms_norm, or nullptr: an offset
//          other than 0 is then what the rows are multiplied by
// bias     likewise, or nullptr for none
// out      x's shape and device, any floating dtype, to which the result is rounded once; any
//          strides without overlap. It may be x itself (same pointer, dtype, shape and strides: in
//          place); any other overlap is refused.
// mean     x's shape without its last axis, which may be kept with one element; float32 (float64
//          for float64), or nullptr
// rstd     likewise
// stream   where a GPU runs it; nothing synchronises and nothing is allocated
//
// The variance is the mean of squared deviations from the mean of the same row. Where a GPU
// computes it from shifted data, cancellation at most triples the relative error: other rows take
// two passes. In float32 and float64 deviations are from the mean to twice the working precision,
// so that a mean far above the spread costs no digits.
//
// Sums are float32 (float64 for float64) in an order fixed by cols and dtype: a row's bits depend
// on nothing else. Sums that would overflow or underflow are recomputed with scaling. Rows of inf
// or NaN, and constant rows with eps = 0, give what IEEE arithmetic gives for the formula.
//
// Throws InvalidArgument, TypeMismatch, CudaError; then nothing was launched and nothing written.
MEMBOUND_API void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                             const ConstTensorView* bias, const LayerNormOptions& options,
                             const TensorView& out, const TensorView* mean, const TensorView* rstd,
                             StreamView stream);

// The same on host arrays, staged through a GPU in chunks so that upload, work and download overlap
// (membound/staging.hpp). The results are complete on return. If CUDA fails midway, some rows may
// have been written.
MEMBOUND_API void layer_norm(const ConstTensorView& x, const ConstTensorView* weight,
                             const ConstTensorView* bias, const LayerNormOptions& options,
                             const TensorView& out, const TensorView* mean, const TensorView* rstd,
                             Device staging_device);

}  // namespace membound
