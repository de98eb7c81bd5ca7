// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_backward_bulk.cuh"
#include "cuda/norm/rms_norm_backward_params.cuh"

namespace membound::cuda {

template <class T, FusedInput kFusedInput, Centring kCentring, bool kOptions = false>
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
    launch<rms_norm_backward_bulk_kernel<T, Group, kFusedInput, kCentring, kOptions>>(shape, stream,
                                                                                      device, p);
  };
  // One block less per SM where registers would spill (bfloat16 LayerNorm 32768 x 3001: 289 -> 247
  // us).
  constexpr bool kGated = kFusedInput == FusedInput::kGate;
  constexpr int kLess = kGated ? 1 : 0;
  constexpr int kSmallLess = kGated || kCentring != Centring::kNever || kOptions ? 1 : 0;
  // 16-bit options and fused inputs leave no registers for more threads (8192 x 6143 with an
  // offset: 136 us, 170 with more).
  constexpr int kPairs =
      sizeof(T) == 2 && (kOptions || kFusedInput != FusedInput::kNone)
          ? tuning::kTwoVectorThreads
          : tuning::two_vector_threads(sizeof(T), kCentring != Centring::kNever, kGated);
  if (config.blocks_per_row > 1) {
    as.template operator()<ClusterGroup<Value, 2, 0>>();
  } else if (config.vectors_per_item == 4) {
    if constexpr (kFusedInput == FusedInput::kResidual) {
      if (config.threads <= tuning::kLowPressureThreads) {
        return as.template operator()<WarpGroup<Value, 4, 0, tuning::kLowPressureThreads, 1>>();
      }
    }
    if constexpr (!kGated) {
      as.template operator()<WarpGroup<Value, 4, 0, tuning::kFourVectorThreads, 1>>();
    }
  } else if (config.vectors_per_item == 1 && config.threads <= tuning::kSmallBlock) {
    as.template operator()<WarpGroup<Value, 1, 0, tuning::kSmallBlock, 3 - kSmallLess>>();
  } else if (config.vectors_per_item == 1) {
    as.template operator()<WarpGroup<Value, 1, 0, kBlock, 2 - kLess>>();
  } else if (config.threads <= kPairs) {
    as.template operator()<WarpGroup<Value, 2, 0, kPairs, 2 - kLess>>();
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
  if (p.gate != nullptr) {
    launch_bulk<T, FusedInput::kGate, Centring::kNever>(p, config, device, stream);
  } else if (p.centred && p.dsum != nullptr) {
    launch_bulk<T, FusedInput::kResidual, Centring::kAlways>(p, config, device, stream);
  } else if (p.centred) {
    launch_bulk<T, FusedInput::kNone, Centring::kAlways>(p, config, device, stream);
  } else if (p.dsum != nullptr) {
    launch_bulk<T, FusedInput::kResidual, Centring::kNever>(p, config, device, stream);
  } else if (!p.plain) {
    launch_bulk<T, FusedInput::kNone, Centring::kNever, true>(p, config, device, stream);
  } else {
    launch_bulk<T, FusedInput::kNone, Centring::kNever>(p, config, device, stream);
  }
  launch_partial_sums(p, device, stream);
}

}  // namespace membound::cuda
