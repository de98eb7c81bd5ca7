// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_bulk.cuh"
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

using FramedLaunch = void(const RmsNormProblem&, const tuning::FramedConfig&,
                          const tuning::RmsNormConfig&, int, StreamView);
template <class T>
void launch_rms_norm_framed(const RmsNormProblem& problem, const tuning::FramedConfig& config,
                            const tuning::RmsNormConfig& row, int device, StreamView stream) {
  RmsNormParams<accumulate_t<T>> p;
  set_params<T>(p, problem, row, RowSplit{});
  const auto as = [&]<Beside kBeside, Centring kCentring>() {
    launch_frames(config, [&]<class Team>(const LaunchShape& shape) {
      launch<rms_norm_framed_kernel<T, Team, kBeside, kCentring>>(shape, stream, device, p);
    });
  };
  if (problem.gate != nullptr) {
    as.template operator()<Beside::kGate, Centring::kNever>();
  } else if (problem.residual != nullptr) {
    p.centred ? as.template operator()<Beside::kResidual, Centring::kAlways>()
              : as.template operator()<Beside::kResidual, Centring::kNever>();
  } else {
    p.centred ? as.template operator()<Beside::kNothing, Centring::kAlways>()
              : as.template operator()<Beside::kNothing, Centring::kNever>();
  }
}

}  // namespace membound::cuda
