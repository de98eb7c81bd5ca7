// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "membound/ndarray.hpp"

namespace membound::array {

// What a stencil reads beyond the ends of an axis a b c d, left and right of it.
enum class Boundary : std::uint8_t {
  kValid,    // nothing: the result is shorter by the stencil's diameter
  kZero,     // 0 0 | a b c d | 0 0
  kNearest,  // a a | a b c d | d d
  kReflect,  // b a | a b c d | d c
  kWrap,     // c d | a b c d | a b
};

struct StencilOptions {
  int axis = -1;
  Boundary boundary = Boundary::kValid;
};

// y[i] = the sum over k of weights[k] * x[i + k - radius] along an axis, for weights (2 radius +
// 1,); with kValid y[0] is the first result whose operands exist. Floats of 16 to 64 bits, which
// promote; 16-bit ones are computed in float32.
MEMBOUND_API NDArray stencil_1d(const NDArray& x, const NDArray& weights,
                                const StencilOptions& options = {});

// The gradients of x and of weights, from that of stencil_1d's result.
struct StencilGradients {
  NDArray dx, dweights;
};
MEMBOUND_API StencilGradients stencil_1d_backward(const NDArray& dy, const NDArray& x,
                                                  const NDArray& weights,
                                                  const StencilOptions& options = {});

}  // namespace membound::array
