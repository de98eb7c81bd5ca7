// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_backward_bulk.cuh"
#include "cuda/norm/rms_norm_backward_params.cuh"

namespace membound::cuda {

template <class T, FusedInput kFusedInput, Centring kCentring>
void launch_bulk(const RmsNormBackwardParams<accumulate_t<T>>& p,
                 const RmsNormBackwardConfig& config, int device, StreamView stream) {
  using Value = RowSum<T, kCentring>;
  constexpr int kBlock = tuning::kPersistentBlock;
  constexpr int kArrays = kFusedInput == FusedInput::kNone ? 2 : 3;
  const LaunchShape shape{
      .blocks = std::int64_t{config.partial_rows} * config.blocks_per_row,
      .threads = config.threads,
      .cluster = config.blocks_per_row,
      .shared_bytes = static_cast<std::size_t>(tuning::bulk_bytes(config, kArrays))};
  const auto as = [&]<class Group>() {
    launch<rms_norm_backward_bulk_kernel<T, Group, kFusedInput, kCentring>>(shape, stream, device,
                                                                            p);
  };
  // One block less per SM where registers would spill (bfloat16 LayerNorm 32768 x 3001: 289 -> 247
  // us).
  constexpr int kSmallBlocks = kCentring == Centring::kNever ? 3 : 2;
  // A 16-bit residual leaves no registers for more threads.
  constexpr int kPairs =
      sizeof(T) == 2 && kFusedInput != FusedInput::kNone
          ? tuning::kTwoVectorThreads
          : tuning::two_vector_threads(sizeof(T), kCentring != Centring::kNever, false);
  if (config.blocks_per_row > 1) {
    as.template operator()<ClusterGroup<Value, 2, 0>>();
  } else if (config.vectors_per_item == 4) {
    if constexpr (kFusedInput == FusedInput::kResidual) {
      if (config.threads <= tuning::kThreeStageThreads) {
        return as.template operator()<WarpGroup<Value, 4, 0, tuning::kThreeStageThreads, 1>>();
      }
    }
    as.template operator()<WarpGroup<Value, 4, 0, tuning::kFourVectorThreads, 1>>();
  } else if (config.vectors_per_item == 1 && config.threads <= tuning::kSmallBlock) {
    as.template operator()<WarpGroup<Value, 1, 0, tuning::kSmallBlock, kSmallBlocks>>();
  } else if (config.vectors_per_item == 1) {
    as.template operator()<WarpGroup<Value, 1, 0, kBlock, 2>>();
  } else if (config.threads <= kPairs) {
    as.template operator()<WarpGroup<Value, 2, 0, kPairs, 2>>();
  } else {
    as.template operator()<WarpGroup<Value, 2, 0, kBlock, 1>>();
  }
}

using BulkGradientLaunch = void(const RmsNormBackwardProblem&, const RmsNormBackwardConfig&, int,
                                StreamView);
template <class T>
void launch_rms_norm_backward_bulk(const RmsNormBackwardProblem& problem,
                                   const RmsNormBackwardConfig& config, int device,
                                   StreamView stream) {
  const auto p = rms_norm_backward_params<T>(problem, config, RowSplit{});
  if (p.centred && p.dsum != nullptr) {
    launch_bulk<T, FusedInput::kResidual, Centring::kAlways>(p, config, device, stream);
  } else if (p.centred) {
    launch_bulk<T, FusedInput::kNone, Centring::kAlways>(p, config, device, stream);
  } else if (p.dsum != nullptr) {
    launch_bulk<T, FusedInput::kResidual, Centring::kNever>(p, config, device, stream);
  } else {
    launch_bulk<T, FusedInput::kNone, Centring::kNever>(p, config, device, stream);
  }
  launch_partial_sums(p, device, stream);
}

}  // namespace membound::cuda
