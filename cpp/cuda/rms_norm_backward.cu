// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

template <class T>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem, int device, StreamView stream);

void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rms_norm_backward", [&]<class T>() {
    launch_rms_norm_backward<T>(problem, current_device(), stream);
  });
}

}  // namespace membound::cuda
