// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/quantised.hpp"
#include "membound/ops/gated_activation_quant.hpp"
#include "ops/gated_activation.hpp"

namespace membound {

// What both back ends receive: the activation, with a null out and never flattened to one row, and
// how its result is quantised.
struct GatedActivationQuantProblem : QuantisedResult {
  GatedActivationProblem activation;
};

namespace cpu {
void gated_activation_quant(const GatedActivationQuantProblem& problem);
}
namespace cuda {
void gated_activation_quant(const GatedActivationQuantProblem& problem, StreamView stream);
}

}  // namespace membound
