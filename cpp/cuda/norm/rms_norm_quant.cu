// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "ops/rms_norm_quant.hpp"

namespace membound::cuda {

void run_norm(const RmsNormProblem& problem, const RmsNormQuantProblem* quant, StreamView stream);

void rms_norm_quant(const RmsNormQuantProblem& problem, StreamView stream) {
  run_norm(problem.norm, &problem, stream);
}

}  // namespace membound::cuda
