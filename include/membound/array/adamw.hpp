// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "membound/ndarray.hpp"

namespace membound::array {

// A parameter and what an optimiser keeps for it, all of one shape. exp_avg and exp_avg_sq are
// float32, for a float64 parameter float64; grad has the parameter's dtype or float32.
struct AdamWParameter {
  NDArray param, grad, exp_avg, exp_avg_sq;
};

struct AdamWOptions {
  double lr;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0.01;
  std::int64_t step = 1;  // of this update, from 1 on
};

// One step of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization") for all
// parameters at once, in place but for the gradients:
//   exp_avg = beta1 * exp_avg + (1 - beta1) * grad
//   exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * grad^2
//   param = (1 - lr * weight_decay) * param
//           - lr / (1 - beta1^step) * exp_avg / (sqrt(exp_avg_sq / (1 - beta2^step)) + eps)
// Nothing is written if an argument does not fit.
MEMBOUND_API void adamw(const std::vector<AdamWParameter>& parameters, const AdamWOptions& options);

}  // namespace membound::array
