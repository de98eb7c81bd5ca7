// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_bulk.cuh"
#include "cuda/norm/rms_norm_launch.cuh"

namespace membound::cuda {

using BulkLaunch = void(const RmsNormProblem&, const tuning::BulkConfig&,
                        const tuning::RmsNormConfig&, int, StreamView);
template <class T>
void launch_rms_norm_bulk(const RmsNormProblem& problem, const tuning::BulkConfig& config,
                          const tuning::RmsNormConfig& row, int device, StreamView stream) {
  RmsNormParams<accumulate_t<T>> p;
  set_params<T>(p, problem, row, RowSplit{});
  const auto as = [&]<FusedInput kFusedInput, Centring kCentring>() {
    launch_bulk_pipeline(config, [&]<class ThreadGroup>(const LaunchShape& shape) {
      launch<rms_norm_bulk_kernel<T, ThreadGroup, kFusedInput, kCentring>>(shape, stream, device,
                                                                           p);
    });
  };
  if (problem.residual.data != nullptr) {
    p.centred ? as.template operator()<FusedInput::kResidual, Centring::kAlways>()
              : as.template operator()<FusedInput::kResidual, Centring::kNever>();
  } else {
    p.centred ? as.template operator()<FusedInput::kNone, Centring::kAlways>()
              : as.template operator()<FusedInput::kNone, Centring::kNever>();
  }
}

}  // namespace membound::cuda
