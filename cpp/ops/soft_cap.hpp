// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/elementwise.hpp"
#include "membound/ops/soft_cap.hpp"

namespace membound {

struct SoftCapProblem {
  ElementwiseProblem arrays;  // inputs: x, and dy for the gradient
  double cap;
};

namespace cpu {
void soft_cap(const SoftCapProblem& problem);
}
namespace cuda {
void soft_cap(const SoftCapProblem& problem, StreamView stream);
}

}  // namespace membound
