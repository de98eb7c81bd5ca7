// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/rms_norm.hpp"

namespace membound {

struct RmsNormBackwardOptions {
  double weight_offset = 0.0;
  Rounding rounding = Rounding::kOnce;
  bool accumulate = false;  // dweight += instead of =
};

// The gradients of rms_norm. With h = x * rstd and g = dy * (weight + weight_offset):
//
//   dx = rstd * (g - h * mean(g * h)),   dweight = sum over rows of dy * h
//
// Rounding::kBeforeWeight rounds h to x's dtype in dweight, where the forward did.
//
// dy        x's shape and device, any floating dtype, any strides
// x         what the forward read
// weight    as in the forward, or nullptr; then there is no dweight
// rstd      what the forward returned: x's shape without its last axis, which may be kept with one
//           element; float32 or float64
// dx        x's shape and device, any floating dtype, or nullptr when it is not wanted; may be dy
//           or x itself
// dweight   weight's shape in any floating dtype, or nullptr when it is not wanted
// workspace on a GPU at least rms_norm_backward_workspace(x, heads, mixed) bytes on x's device,
//           aligned to 16, uint8; nullptr: allocated on the stream. The CPU needs none.
// stream    as in rms_norm
//
// Sums are float64 where an input is. dweight is summed so in a tree that rows, cols and dtype fix:
// the same bits on every run, for any number of multiprocessors or CPU threads.
//
// Throws InvalidArgument, TypeMismatch, OutOfMemory, CudaError.
MEMBOUND_API void rms_norm_backward(const ConstTensorView& dy, const ConstTensorView& x,
                                    const ConstTensorView* weight, const ConstTensorView& rstd,
                                    const RmsNormBackwardOptions& options, const TensorView* dx,
                                    const TensorView* dweight, const TensorView* workspace,
                                    StreamView stream);

// Bytes of workspace for an x of this shape, dtype and device, dweight wanted; heads of a weight of
// (heads, cols). mixed: the arrays of rows have more than one dtype, a statistic is float64 but x
// is not, or there is an offset without a weight.
MEMBOUND_API std::int64_t rms_norm_backward_workspace(const ConstTensorView& x,
                                                      std::int64_t heads = 1, bool mixed = false);

}  // namespace membound
