// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/array/scalar_math.hpp"
#include "core/host_device.hpp"

namespace membound {

// What is the same for all elements of an AdamW step.
struct AdamWFactors {
  double decay;         // 1 - lr * weight_decay
  double beta1, beta2;  // of exp_avg and exp_avg_sq
  double step_size;     // lr / (1 - beta1^step)
  double correction;    // sqrt(1 - beta2^step)
  double eps;
};

// The step of one element, in the arithmetic type A.
template <class A>
struct AdamWStep {
  A decay, beta1, rest1, beta2, rest2, step_size, correction, eps;

  explicit AdamWStep(const AdamWFactors& of)
      : decay(A(of.decay)),
        beta1(A(of.beta1)),
        rest1(A(1 - of.beta1)),
        beta2(A(of.beta2)),
        rest2(A(1 - of.beta2)),
        step_size(A(of.step_size)),
        correction(A(of.correction)),
        eps(A(of.eps)) {}

  MEMBOUND_HOST_DEVICE A exp_avg(A before, A grad) const { return beta1 * before + rest1 * grad; }
  MEMBOUND_HOST_DEVICE A exp_avg_sq(A before, A grad) const {
    return beta2 * before + rest2 * grad * grad;
  }
  MEMBOUND_HOST_DEVICE A param(A before, A exp_avg, A exp_avg_sq) const {
    return decay * before - step_size * (exp_avg / (scalar::sqrt(exp_avg_sq) / correction + eps));
  }
};

}  // namespace membound
