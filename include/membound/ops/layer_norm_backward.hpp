// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/layer_norm.hpp"

namespace membound {

struct LayerNormBackwardOptions {
  double weight_offset = 0.0;
  bool accumulate = false;  // dweight and dbias += instead of =
};

// The gradients of layer_norm. With h = (x - mean) * rstd and g = dy * (weight + weight_offset):
//
//   dx = rstd * (g - mean(g) - h * mean(g * h))
//   dweight = sum over rows of dy * h,   dbias = sum over rows of dy
//
// dy        x's shape and device, any floating dtype, any strides
// x         what the forward read
// weight    as in the forward, or nullptr; then there is no dweight
// mean      what the forward returned: x's shape without its last axis, which may be kept with one
//           element; float32 or float64
// rstd      likewise
// dx        x's shape and device, any floating dtype, or nullptr when it is not wanted; may be dy
//           or x itself
// dweight   (cols,) of any floating dtype, or nullptr when it is not wanted
// dbias     likewise; it needs no weight
// workspace on a GPU at least layer_norm_backward_workspace(x, heads, mixed) bytes on x's device,
//           aligned to 16, uint8; nullptr: allocated on the stream. The CPU needs none.
// stream    as in layer_norm
//
// Sums are float64 where an input is. dweight and dbias are summed so in a tree that rows, cols and
// dtype fix: the same bits on every run, for any number of multiprocessors or CPU threads.
//
// Throws InvalidArgument, TypeMismatch, OutOfMemory, CudaError.
MEMBOUND_API void layer_norm_backward(const ConstTensorView& dy, const ConstTensorView& x,
                                      const ConstTensorView* weight, const ConstTensorView& mean,
                                      const ConstTensorView& rstd,
                                      const LayerNormBackwardOptions& options, const TensorView* dx,
                                      const TensorView* dweight, const TensorView* dbias,
                                      const TensorView* workspace, StreamView stream);

// As rms_norm_backward_workspace, dweight or dbias wanted.
MEMBOUND_API std::int64_t layer_norm_backward_workspace(const ConstTensorView& x,
                                                        std::int64_t heads = 1, bool mixed = false);

}  // namespace membound
