// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a problem to a launch for one storage type, with or without a residual. Each pair is a
// translation unit of its own (rms_norm_<dtype>.cu, rms_norm_add_<dtype>.cu), so that they compile
// side by side.
#include <cmath>

#include "cuda/launch.hpp"
#include "cuda/rms_norm_kernels.cuh"
#include "cuda/row_array.hpp"
#include "cuda/tuning/rms_norm.hpp"
#include "ops/rms_norm.hpp"

namespace membound::cuda {

template <class T, bool kAdd>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config, int device,
                     StreamView stream);

template <class T>
RmsNormParams<accumulate_t<T>> rms_norm_params(const RmsNormProblem& problem,
                                               const tuning::RmsNormConfig& config) {
  using Accumulate = accumulate_t<T>;
  const bool add = problem.residual != nullptr;
  RmsNormParams<Accumulate> p;
  p.x = problem.x;
  p.weight = problem.weight;
  p.out = problem.out;
  p.rstd = static_cast<Accumulate*>(problem.rstd);
  p.residual = problem.residual;
  p.residual_out = problem.residual_out;
  p.rows = problem.rows;
  p.cols = problem.cols;
  const auto array = [&](const void* data, const RowLayout& rows, std::int64_t col_stride) {
    return row_array(data, rows, problem.rows, problem.cols, col_stride, sizeof(T));
  };
  p.x_array = array(problem.x, problem.x_rows, problem.x_col_stride);
  p.out_array = array(problem.out, problem.out_rows, problem.out_col_stride);
  p.x_row_stride = problem.x_rows.strides[0];
  p.out_row_stride = problem.out_rows.strides[0];
  p.one_stride = problem.x_rows.rank <= 1 && problem.out_rows.rank <= 1;
  p.rstd_row_stride = 0;
  if (problem.rstd != nullptr) {
    p.rstd_array.rows = problem.rstd_rows;
    p.rstd_row_stride = problem.rstd_rows.strides[0];
    p.one_stride = p.one_stride && problem.rstd_rows.rank <= 1;
  }
  if (add) {
    p.residual_array = array(problem.residual, problem.residual_rows, problem.residual_col_stride);
    p.residual_out_array =
        array(problem.residual_out, problem.residual_out_rows, problem.residual_out_col_stride);
    p.residual_row_stride = problem.residual_rows.strides[0];
    p.residual_out_row_stride = problem.residual_out_rows.strides[0];
    p.one_stride =
        p.one_stride && problem.residual_rows.rank <= 1 && problem.residual_out_rows.rank <= 1;
  }
  p.weight_stride = problem.weight_stride;
  p.weight_dtype = problem.weight_dtype;
  p.weight_is_float = sizeof(T) == 2 && problem.weight_dtype == DType::kFloat32;
  p.inverse_cols = Accumulate(1) / static_cast<Accumulate>(problem.cols);
  p.eps = static_cast<Accumulate>(problem.eps);
  p.weight_offset = static_cast<Accumulate>(problem.weight_offset);
  p.trusted = safe_range(problem.eps, Accumulate());
  p.exact_eps = problem.eps;
  // An exponent below every other, yet far enough from INT_MIN to compute with.
  p.sqrt_eps_exponent = problem.eps > 0.0 ? std::ilogb(std::sqrt(problem.eps)) : -100000;
  p.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  p.plain = problem.weight != nullptr && problem.weight_dtype == problem.dtype &&
            problem.weight_offset == 0.0 && !p.round_before_weight;
  p.chunks = static_cast<int>(tuning::ceil_div(problem.cols, kPack<T>));
  p.lanes = config.lanes;
  p.blocks_per_row = config.blocks_per_row;
  p.groups = config.groups;
  p.segments_per_group = config.segments_per_group;
  p.overlap_launch = config.overlap_launch;
  return p;
}

template <class T>
Access access_of(const RmsNormProblem& problem) {
  Access access = weight_access<T>(problem.weight, problem.weight_dtype, problem.weight_stride);
  const auto also = [&](const void* data, const RowLayout& rows, std::int64_t col_stride) {
    access = std::max(access, row_access<T>(data, rows, problem.cols, col_stride));
  };
  also(problem.x, problem.x_rows, problem.x_col_stride);
  also(problem.out, problem.out_rows, problem.out_col_stride);
  if (problem.residual != nullptr) {
    also(problem.residual, problem.residual_rows, problem.residual_col_stride);
    also(problem.residual_out, problem.residual_out_rows, problem.residual_out_col_stride);
  }
  if (problem.rstd != nullptr && problem.rstd_rows.rank > 1) {
    access = std::max(access, Access::kShifted);
  }
  return access;
}

template <class T, Access kAccess, bool kAdd>
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
  const auto held = [&]<class Team>() {
    launch<rms_norm_row_kernel<T, Team, kAccess, kAdd>>(shape, stream, device, p);
  };
  const auto wide = [&]<int kVecs, int kMaxWarps, Access kRowAccess>() {
    if (config.form == RowForm::kStreamed) {
      launch<rms_norm_streamed_kernel<T, kVecs, kMaxWarps, kRowAccess, kAdd>>(shape, stream, device,
                                                                              p);
    } else {
      launch<rms_norm_row_kernel<T, ClusterTeam<Accumulate, kVecs, kMaxWarps>, kRowAccess, kAdd>>(
          shape, stream, device, p);
    }
  };
  const auto block = [&] {
    if constexpr (kAccess != Access::kAligned) {
      held.template operator()<BlockTeam<Accumulate, 1, 16>>();
    } else if (config.max_warps == 8) {
      config.fold == 1 ? held.template operator()<BlockTeam<Accumulate, 1, 8>>()
                       : held.template operator()<BlockTeam<Accumulate, 2, 8>>();
    } else {
      config.fold == 1 ? held.template operator()<BlockTeam<Accumulate, 1, 16>>()
                       : held.template operator()<BlockTeam<Accumulate, 2, 16>>();
    }
  };
  if (config.form == RowForm::kWarp) {
    held.template operator()<WarpTeam<Accumulate>>();
  } else if (config.form == RowForm::kBlock) {
    block();
  } else if (config.vecs == 4) {
    wide.template operator()<4, 8, kAccess>();
  } else if (config.max_warps == 8) {
    wide.template operator()<8, 8, kAccess>();
  } else if constexpr (sizeof(T) == 8) {
    // Shifted rows of this class do not fit the static shared memory.
    wide.template operator()<8, 16, kAccess == Access::kAligned ? kAccess : Access::kAny>();
  }
}

template <class T, bool kAdd>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config, int device,
                     StreamView stream) {
  const Access access = access_of<T>(problem);
  if (access == Access::kAligned) {
    return launch_with<T, Access::kAligned, kAdd>(problem, config, device, stream);
  }
  const tuning::RmsNormConfig unfolded = tuning::unfolded(config);
  if (access == Access::kShifted) {
    return launch_with<T, Access::kShifted, kAdd>(problem, unfolded, device, stream);
  }
  launch_with<T, Access::kAny, kAdd>(problem, unfolded, device, stream);
}

}  // namespace membound::cuda
