// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch.hpp"
#include "cuda/tuning/rms_norm_backward.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

template <class T>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem,
                              const tuning::RmsNormBackwardConfig& config, int device,
                              StreamView stream);

void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rms_norm_backward", [&]<class T>() {
    const int device = current_device();
    const auto config =
        tuning::rms_norm_backward_config(problem.rows, problem.cols, sizeof(T),
                                         problem.dweight != nullptr, max_cluster_size(device));
    launch_rms_norm_backward<T>(problem, config, device, stream);
  });
}

}  // namespace membound::cuda
