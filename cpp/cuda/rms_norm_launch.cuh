// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a problem to a launch for one storage type. Each type is a translation unit of its own
// (rms_norm_<dtype>.cu), so that they compile side by side.
#include <cmath>
#include <type_traits>

#include "cuda/launch.hpp"
#include "cuda/rms_norm_kernels.cuh"
#include "cuda/tuning/rms_norm.hpp"
#include "ops/rms_norm.hpp"

namespace membound::cuda {

template <class T>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config, int device,
                     StreamView stream);

template <class T>
RmsNormParams<accumulate_t<T>> rms_norm_params(const RmsNormProblem& problem,
                                               const tuning::RmsNormConfig& config) {
  using Accumulate = accumulate_t<T>;
  RmsNormParams<Accumulate> p;
  p.x = problem.x;
  p.weight = problem.weight;
  p.out = problem.out;
  p.rstd = static_cast<Accumulate*>(problem.rstd);
  p.rows = problem.rows;
  p.cols = problem.cols;
  p.x_row_stride = problem.x_rows.strides[0];
  p.out_row_stride = problem.out_rows.strides[0];
  p.rstd_row_stride = problem.rstd != nullptr ? problem.rstd_rows.strides[0] : 0;
  p.x_col_stride = problem.x_col_stride;
  p.out_col_stride = problem.out_col_stride;
  p.weight_stride = problem.weight_stride;
  p.x_rows = problem.x_rows;
  p.out_rows = problem.out_rows;
  p.rstd_rows = problem.rstd_rows;
  p.inverse_cols = Accumulate(1) / static_cast<Accumulate>(problem.cols);
  p.eps = static_cast<Accumulate>(problem.eps);
  p.weight_offset = static_cast<Accumulate>(problem.weight_offset);
  p.trusted = safe_range(problem.eps, Accumulate());
  p.exact_eps = problem.eps;
  // An exponent below every other, yet far enough from INT_MIN to compute with.
  p.sqrt_eps_exponent = problem.eps > 0.0 ? std::ilogb(std::sqrt(problem.eps)) : -100000;
  p.weight_dtype = problem.weight_dtype;
  p.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  p.chunks = static_cast<int>(tuning::ceil_div(problem.cols, kPack<T>));
  p.lanes = config.lanes;
  p.blocks_per_row = config.blocks_per_row;
  p.groups = config.groups;
  p.segments_per_group = config.segments_per_group;
  p.overlap_launch = config.overlap_launch;
  return p;
}

inline bool aligned_rows(const void* data, const RowLayout& rows, std::size_t size) {
  if (reinterpret_cast<std::uintptr_t>(data) % kChunkBytes != 0) return false;
  return rows.rank <= 1 && rows.strides[0] * static_cast<std::int64_t>(size) % kChunkBytes == 0;
}

template <class T>
bool is_aligned(const RmsNormProblem& problem) {
  if (problem.cols % kPack<T> != 0 || problem.x_col_stride != 1 || problem.out_col_stride != 1) {
    return false;
  }
  if (problem.weight != nullptr) {
    const DType dtype = problem.weight_dtype;
    if (dtype != problem.dtype && !(sizeof(T) == 2 && dtype == DType::kFloat32)) return false;
    if (problem.weight_stride != 1) return false;
    if (reinterpret_cast<std::uintptr_t>(problem.weight) % kChunkBytes != 0) return false;
  }
  if (problem.rstd != nullptr && problem.rstd_rows.rank > 1) return false;
  return aligned_rows(problem.x, problem.x_rows, sizeof(T)) &&
         aligned_rows(problem.out, problem.out_rows, sizeof(T));
}

template <class T, class W, Access kAccess>
void launch_with(const RmsNormProblem& problem, const tuning::RmsNormConfig& config, int device,
                 StreamView stream) {
  using tuning::RowForm;
  using Accumulate = accumulate_t<T>;
  const auto p = rms_norm_params<T>(problem, config);
  const LaunchShape shape{
      .blocks = config.form == RowForm::kWarp
                    ? tuning::ceil_div(problem.rows, config.threads / config.lanes)
                    : problem.rows * config.blocks_per_row,
      .threads = config.threads,
      .cluster = config.blocks_per_row,
      .overlap_launch = config.overlap_launch,
  };
  const auto held = [&]<class Team, int kMaxThreads>() {
    launch<rms_norm_row_kernel<T, W, Team, kAccess, kMaxThreads>>(shape, stream, device, p);
  };
  const auto wide = [&]<int kVecs, int kMaxWarps>() {
    if (config.form == RowForm::kStreamed) {
      launch<rms_norm_streamed_kernel<T, kVecs, kMaxWarps,
                                      std::is_same_v<T, W> ? kAccess : Access::kAny>>(shape, stream,
                                                                                      device, p);
    } else {
      held.template operator()<ClusterTeam<Accumulate, kVecs, kMaxWarps>, kMaxWarps * kWarpLanes>();
    }
  };
  if (config.form == RowForm::kWarp) {
    held.template operator()<WarpTeam<Accumulate>, 2 * tuning::kWarpFormThreads>();
  } else if (config.form == RowForm::kBlock && config.max_warps == 8) {
    config.fold == 1 ? held.template operator()<BlockTeam<Accumulate, 1, 8>, 256>()
                     : held.template operator()<BlockTeam<Accumulate, 2, 8>, 128>();
  } else if (config.form == RowForm::kBlock) {
    config.fold == 1 ? held.template operator()<BlockTeam<Accumulate, 1, 16>, 512>()
                     : held.template operator()<BlockTeam<Accumulate, 2, 16>, 256>();
  } else if (config.vecs == 4) {
    wide.template operator()<4, 8>();
  } else if (config.max_warps == 8) {
    wide.template operator()<8, 8>();
  } else if constexpr (sizeof(T) == 8) {
    wide.template operator()<8, 16>();
  }
}

template <class T>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config, int device,
                     StreamView stream) {
  if (!is_aligned<T>(problem)) {
    return launch_with<T, T, Access::kAny>(problem, config, device, stream);
  }
  if constexpr (sizeof(T) == 2) {
    if (problem.weight_dtype == DType::kFloat32) {
      return launch_with<T, float, Access::kAligned>(problem, config, device, stream);
    }
  }
  launch_with<T, T, Access::kAligned>(problem, config, device, stream);
}

}  // namespace membound::cuda
