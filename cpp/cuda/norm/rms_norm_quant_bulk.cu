// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/norm/rms_norm_quant_bulk.cuh"
#include "cuda/norm/rms_norm_quant_launch.cuh"

namespace membound::cuda {

template <class T>
void launch_rms_norm_quant_framed(const RmsNormQuantProblem& problem,
                                  const tuning::FramedConfig& config,
                                  const tuning::RmsNormConfig& row, int device, StreamView stream) {
  const auto p = quant_params<T>(problem, row, RowSplit{});
  const auto as = [&]<Beside kBeside>() {
    launch_frames(config, [&]<class Team>(const LaunchShape& shape) {
      launch<rms_norm_quant_framed_kernel<T, Team, kBeside>>(shape, stream, device, p);
    });
  };
  problem.norm.residual == nullptr ? as.template operator()<Beside::kNothing>()
                                   : as.template operator()<Beside::kResidual>();
}

template QuantFramedLaunch launch_rms_norm_quant_framed<Float16>;
template QuantFramedLaunch launch_rms_norm_quant_framed<BFloat16>;
template QuantFramedLaunch launch_rms_norm_quant_framed<float>;

}  // namespace membound::cuda
