// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/qk_norm_rope.hpp"

namespace membound {

// The arrays of q, or of k, in qk_norm_rope_backward.
struct QkNormRopeGradient {
  const ConstTensorView& dy;                // the gradient of what the forward wrote
  const ConstTensorView& x;                 // what the forward read, in dy's shape and dtype
  const ConstTensorView* weight = nullptr;  // as in the forward
  const ConstTensorView* rstd = nullptr;    // what the forward wrote, or nullptr: recomputed
  const TensorView& dx;                     // may be dy or x itself
  const TensorView* dweight = nullptr;      // weight's shape, any floating dtype; nullptr: none
};

// The gradients of qk_norm_rope. With h = x * rstd, t = dy rotated back and g = t * (weight +
// weight_offset):
//
//   dx = rstd * (g - h * mean(g * h)),   dweight = sum of t * h over tokens, and over heads where
//                                        they share the weight
//
// kBeforeWeight rounds h to x's dtype in dweight, where the forward did; nothing else is rounded
// before the results.
//
// q, k        k is nullptr where the forward had none
// accumulate  dweight += instead of =
// workspace   for dweight on a GPU: at least qk_norm_rope_backward_workspace bytes on q's device,
//             aligned to 16, uint8; nullptr: allocated on the stream. The CPU needs none.
// The rest as in the forward.
//
// dweight is summed in float32 (float64) in a tree that shapes and dtype fix: the same bits on
// every run, for any number of multiprocessors or CPU threads.
MEMBOUND_API void qk_norm_rope_backward(const QkNormRopeGradient& q, const QkNormRopeGradient* k,
                                        const RopeAngles& angles, const QkNormRopeOptions& options,
                                        bool accumulate, const TensorView* workspace,
                                        StreamView stream);

// Bytes of workspace for q and k of these shapes, layout and dtype, k nullptr where there is none.
MEMBOUND_API std::int64_t qk_norm_rope_backward_workspace(const ConstTensorView& q,
                                                          const ConstTensorView* k,
                                                          RopeLayout layout);

}  // namespace membound
