// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/export.hpp"
#include "membound/stream.hpp"
#include "membound/tensor_view.hpp"

namespace membound {

// Where a 16-bit result is rounded.
enum class Rounding : std::uint8_t {
  kOnce,          // all in float32, one rounding at the end: torch's F.rms_norm; with
                  // weight_offset = 1 Gemma's module
  kBeforeWeight,  // x * rstd is rounded to x's dtype, then multiplied by the weight and rounded
                  // to out's: Hugging Face's Llama-family modules
};

struct RmsNormOptions {
  double eps = 1e-6;
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
};

// Root mean square normalisation over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467):
//
//   rstd = 1 / sqrt(mean(x * x) + eps),   out = x * rstd * (weight + weight_offset)
//
// x        (..., cols), float16, bfloat16, float32 or float64, any strides, any alignment
// weight   (cols,) of any of those dtypes, or (heads, cols) for x of (..., heads, cols) with three
//          axes and more: one for each head; or nullptr for no weight: an offset other than 0 is
//          then what the rows are multiplied by
// out      x's shape and device, any floating dtype, to which the result is rounded once; any
//          strides without overlap. It may be x itself (same pointer, dtype, shape and strides: in
//          place); any other overlap is refused.
// rstd     x's shape without its last axis, which may be kept with one element; float32 (float64
//          for float64), or nullptr
// stream   where a GPU runs it; nothing synchronises and nothing is allocated
//
// Sums are float32 (float64 for float64) in an order fixed by cols and dtype: a row's bits depend
// on nothing else. A sum of squares that would overflow or underflow is recomputed with scaling.
// Rows of inf or NaN, and zero rows with eps = 0, give what IEEE arithmetic gives for the formula.
//
// Throws InvalidArgument, TypeMismatch, CudaError; then nothing was launched and nothing written.
MEMBOUND_API void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
                           const RmsNormOptions& options, const TensorView& out,
                           const TensorView* rstd, StreamView stream);

// The same on host arrays, staged through a GPU in chunks so that upload, work and download overlap
// (membound/staging.hpp). The results are complete on return. If CUDA fails midway, some rows of
// out and rstd may have been written.
MEMBOUND_API void rms_norm(const ConstTensorView& x, const ConstTensorView* weight,
                           const RmsNormOptions& options, const TensorView& out,
                           const TensorView* rstd, Device staging_device);

}  // namespace membound
