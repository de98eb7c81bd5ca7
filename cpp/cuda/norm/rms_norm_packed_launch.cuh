// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/norm/rms_norm_launch.cuh"
#include "cuda/norm/rms_norm_packed.cuh"
#include "cuda/row/packed_config.hpp"

namespace membound::cuda {

using DenseLaunch = void(const RmsNormProblem&, const tuning::DenseConfig&,
                         const tuning::RmsNormConfig&, int, StreamView);
template <class T>
void launch_rms_norm_dense(const RmsNormProblem& problem, const tuning::DenseConfig& config,
                           const tuning::RmsNormConfig& row, int device, StreamView stream) {
  RmsNormDenseParams<accumulate_t<T>> p;
  set_params<T>(p, problem, row, RowSplit{});
  p.piece_rows = config.rows;
  p.piece_places = config.places;
  const LaunchShape shape{.blocks = config.blocks,
                          .threads = row.threads,
                          .shared_bytes = static_cast<std::size_t>(config.bytes),
                          .overlap_launch = row.overlap_launch};
  const auto as = [&]<Beside kBeside, Centring kCentring>() {
    if constexpr (kBeside == Beside::kNothing) {
      if (tuning::spares_quarter(p.chunks, row.lanes)) {
        return launch<rms_norm_dense_kernel<T, kBeside, kCentring, true>>(shape, stream, device, p);
      }
    }
    launch<rms_norm_dense_kernel<T, kBeside, kCentring, false>>(shape, stream, device, p);
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
