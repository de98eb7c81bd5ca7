// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_backward_packed.cuh"
#include "cuda/norm/rms_norm_backward_params.cuh"

namespace membound::cuda {

using PackedGradientLaunch = void(const RmsNormBackwardProblem&, const RmsNormBackwardConfig&,
                                  const tuning::PackedGradientConfig&, int, StreamView);
template <class T>
void launch_rms_norm_backward_packed(const RmsNormBackwardProblem& problem,
                                     const RmsNormBackwardConfig& config,
                                     const tuning::PackedGradientConfig& packed, int device,
                                     StreamView stream) {
  const PackedGradientParams<accumulate_t<T>> p{
      rms_norm_backward_params<T>(problem, config, RowSplit{}), packed.places};
  const LaunchShape shape{.blocks = config.partial_rows,
                          .threads = config.threads,
                          .shared_bytes = static_cast<std::size_t>(packed.bytes)};
  const auto as = [&]<FusedInput kFusedInput, Centring kCentring>() {
    launch<rms_norm_backward_packed_kernel<T, kFusedInput, kCentring>>(shape, stream, device, p);
  };
  if (p.centred && p.dsum != nullptr) {
    as.template operator()<FusedInput::kResidual, Centring::kAlways>();
  } else if (p.centred) {
    as.template operator()<FusedInput::kNone, Centring::kAlways>();
  } else if (p.dsum != nullptr) {
    as.template operator()<FusedInput::kResidual, Centring::kNever>();
  } else {
    as.template operator()<FusedInput::kNone, Centring::kNever>();
  }
  launch_partial_sums<accumulate_t<T>>(p, device, stream);
}

}  // namespace membound::cuda
