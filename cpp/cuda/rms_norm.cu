// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch.hpp"
#include "cuda/tuning/rms_norm.hpp"
#include "ops/rms_norm.hpp"

namespace membound::cuda {

template <class T, bool kAdd>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config, int device,
                     StreamView stream);

void rms_norm(const RmsNormProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rms_norm", [&]<class T>() {
    const int device = current_device();
    const tuning::RmsNormConfig config =
        tuning::rms_norm_config(problem.rows, problem.cols, sizeof(T), max_cluster_size(device));
    problem.residual == nullptr ? launch_rms_norm<T, false>(problem, config, device, stream)
                                : launch_rms_norm<T, true>(problem, config, device, stream);
  });
}

}  // namespace membound::cuda
