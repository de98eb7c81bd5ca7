// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_backward_packed.cuh"
#include "cuda/norm/rms_norm_backward_params.cuh"

namespace membound::cuda {

using DenseGradientLaunch = void(const RmsNormBackwardProblem&, const RmsNormBackwardConfig&,
                                 const tuning::DenseGradientConfig&, int, StreamView);
template <class T>
void launch_rms_norm_backward_dense(const RmsNormBackwardProblem& problem,
                                    const RmsNormBackwardConfig& config,
                                    const tuning::DenseGradientConfig& dense, int device,
                                    StreamView stream) {
  const DenseGradientParams<accumulate_t<T>> p{
      rms_norm_backward_params<T>(problem, config, RowSplit{}), dense.places};
  const LaunchShape shape{.blocks = config.partial_rows,
                          .threads = config.threads,
                          .shared_bytes = static_cast<std::size_t>(dense.bytes)};
  const auto as = [&]<Third kThird, Centring kCentring, bool kOptions = false>() {
    launch<rms_norm_backward_dense_kernel<T, kThird, kCentring, kOptions>>(shape, stream, device,
                                                                           p);
  };
  if (p.gate != nullptr) {
    as.template operator()<Third::kGate, Centring::kNever>();
  } else if (p.centred && p.dsum != nullptr) {
    as.template operator()<Third::kDsum, Centring::kAlways>();
  } else if (p.centred) {
    as.template operator()<Third::kNothing, Centring::kAlways>();
  } else if (p.dsum != nullptr) {
    as.template operator()<Third::kDsum, Centring::kNever>();
  } else if (!p.plain) {
    as.template operator()<Third::kNothing, Centring::kNever, true>();
  } else {
    as.template operator()<Third::kNothing, Centring::kNever>();
  }
  launch_partial_sums<accumulate_t<T>>(p, device, stream);
}

}  // namespace membound::cuda
