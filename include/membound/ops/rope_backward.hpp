// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "membound/ops/rope.hpp"

namespace membound {

// The gradients of rope: that of q is dq rotated back, that is rope with `inverse` (without it if
// the forward had it), and so for k. With dfreqs also that of the frequencies,
//
//   dfreqs[j] = sum over tokens and heads of position * (x1 * dx2 - x2 * dx1)
//
// dq         the gradient of rope's out, as q in rope; dk likewise, or nullptr
// q, k       what rope read, in dq's and dk's shape and dtype: with dfreqs alone, else nullptr
// dq_out     as out in rope; may be dq itself, but not q. dk_out likewise, there with dk alone
// dfreqs     (rotary_dim / 2,), float32 or float64, or nullptr; with angles.freqs
// workspace  for dfreqs: at least rope_backward_workspace(rotary_dim) bytes on dq's device, aligned
//            to 16, uint8; nullptr: allocated, on a GPU on the stream, before anything is written
// The rest as in rope.
//
// dfreqs is summed in float64 in a tree that the shapes fix: the same bits on every run.
MEMBOUND_API void rope_backward(const ConstTensorView& dq, const ConstTensorView* dk,
                                const ConstTensorView* q, const ConstTensorView* k,
                                const RopeAngles& angles, const RopeOptions& options,
                                const TensorView& dq_out, const TensorView* dk_out,
                                const TensorView* dfreqs, const TensorView* workspace,
                                StreamView stream);

MEMBOUND_API std::int64_t rope_backward_workspace(std::int64_t rotary_dim);

}  // namespace membound
