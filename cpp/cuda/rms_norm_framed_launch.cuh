// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/rms_norm_framed.cuh"
#include "cuda/rms_norm_launch.cuh"

namespace membound::cuda {

using FramedLaunch = void(const RmsNormProblem&, const tuning::FramedConfig&,
                          const tuning::RmsNormConfig&, int, StreamView);
template <class T>
void launch_rms_norm_framed(const RmsNormProblem& problem, const tuning::FramedConfig& config,
                            const tuning::RmsNormConfig& row, int device, StreamView stream) {
  RmsNormParams<accumulate_t<T>> p;
  set_params<T>(p, problem, row, RowSplit{});
  const LaunchShape shape{.blocks = config.blocks,
                          .threads = config.threads,
                          .shared_bytes = static_cast<std::size_t>(config.bytes)};
  const auto as = [&]<Beside kBeside, Centring kCentring>() {
    config.vecs == 4 ? launch<rms_norm_framed_kernel<T, BlockTeam<1, 16, 4>, kBeside, kCentring>>(
                           shape, stream, device, p)
                     : launch<rms_norm_framed_kernel<T, BlockTeam<1, 16>, kBeside, kCentring>>(
                           shape, stream, device, p);
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
