// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_launch.cuh"
#include "cuda/norm/rms_norm_packed.cuh"
#include "cuda/row/packed_config.hpp"

namespace membound::cuda {

using PackedLaunch = void(const RmsNormProblem&, const tuning::PackedConfig&,
                          const tuning::RmsNormConfig&, int, StreamView);
template <class T>
void launch_rms_norm_packed(const RmsNormProblem& problem, const tuning::PackedConfig& config,
                            const tuning::RmsNormConfig& row, int device, StreamView stream) {
  RmsNormPackedParams<accumulate_t<T>> p;
  set_params<T>(p, problem, row, RowSplit{});
  p.tile_rows = config.rows;
  p.tile_vectors = config.places;
  const LaunchShape shape{.blocks = config.blocks,
                          .threads = row.threads,
                          .shared_bytes = static_cast<std::size_t>(config.bytes),
                          .overlap_launch = row.overlap_launch};
  const auto as = [&]<FusedInput kFusedInput, Centring kCentring>() {
    if constexpr (kFusedInput == FusedInput::kNone) {
      if (tuning::is_three_quarters_full(p.vectors, row.lanes)) {
        return launch<rms_norm_packed_kernel<T, kFusedInput, kCentring, true>>(shape, stream,
                                                                               device, p);
      }
    }
    launch<rms_norm_packed_kernel<T, kFusedInput, kCentring, false>>(shape, stream, device, p);
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
