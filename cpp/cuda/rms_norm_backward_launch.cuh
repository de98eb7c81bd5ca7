// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a problem to its launches for one storage type. Each type is a translation unit of its own
// (rms_norm_backward_<dtype>.cu), so that they compile side by side.
#include "cuda/launch.hpp"
#include "cuda/rms_norm_backward_persistent.cuh"
#include "cuda/rms_norm_backward_roles.cuh"
#include "cuda/row_array.hpp"
#include "cuda/tuning/rms_norm_backward.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

using tuning::RmsNormBackwardConfig;

template <class T>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem, int device, StreamView stream);

template <class T>
RmsNormBackwardParams<accumulate_t<T>> rms_norm_backward_params(
    const RmsNormBackwardProblem& problem, const RmsNormBackwardConfig& config) {
  using Accumulate = accumulate_t<T>;
  RmsNormBackwardParams<Accumulate> p;
  p.dy = problem.dy;
  p.x = problem.x;
  p.dsum = problem.dsum;
  p.weight = problem.weight;
  p.rstd = static_cast<const Accumulate*>(problem.rstd);
  p.dx = problem.dx;
  p.partials = static_cast<Accumulate*>(problem.workspace);
  p.dweight = problem.dweight;
  p.rows = problem.rows;
  p.cols = problem.cols;
  p.one_stride = problem.rstd_rows.rank <= 1;
  const auto array = [&](const void* data, const RowLayout& rows, std::int64_t col_stride,
                         RowArray& to, std::int64_t& row_stride) {
    if (data == nullptr) return;
    to = row_array(data, rows, problem.rows, problem.cols, col_stride, sizeof(T));
    row_stride = rows.strides[0];
    p.one_stride = p.one_stride && rows.rank <= 1;
  };
  array(problem.dy, problem.dy_rows, problem.dy_col_stride, p.dy_array, p.dy_row_stride);
  array(problem.x, problem.x_rows, problem.x_col_stride, p.x_array, p.x_row_stride);
  array(problem.dsum, problem.dsum_rows, problem.dsum_col_stride, p.dsum_array, p.dsum_row_stride);
  array(problem.dx, problem.dx_rows, problem.dx_col_stride, p.dx_array, p.dx_row_stride);
  p.rstd_rows = problem.rstd_rows;
  p.rstd_row_stride = problem.rstd_rows.strides[0];
  p.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  p.accumulate = problem.accumulate;
  p.weight_is_float = sizeof(T) == 2 && problem.weight_dtype == DType::kFloat32;
  p.weight_dtype = problem.weight_dtype;
  p.dweight_dtype = problem.dweight_dtype;
  p.plain = problem.weight != nullptr && problem.weight_dtype == problem.dtype &&
            problem.weight_offset == 0.0 && !p.round_before_weight && problem.dx != nullptr &&
            problem.dsum == nullptr;
  p.inverse_cols = Accumulate(1) / static_cast<Accumulate>(problem.cols);
  p.weight_offset = static_cast<Accumulate>(problem.weight_offset);
  p.weight_stride = problem.weight_stride;
  p.dweight_stride = problem.dweight_stride;
  p.chunks = static_cast<int>(tuning::ceil_div(problem.cols, kPack<T>));
  p.lanes = config.lanes;
  p.blocks_per_row = config.blocks_per_row;
  p.partial_rows = config.partial_rows;
  p.groups = config.rows.groups;
  p.segments_per_group = config.rows.segments_per_group;
  p.column_blocks = static_cast<int>(config.column_blocks);
  return p;
}

template <class T>
Access access_of(const RmsNormBackwardProblem& problem) {
  Access access = weight_access<T>(problem.weight, problem.weight_dtype, problem.weight_stride);
  const auto also = [&](const void* data, const RowLayout& rows, std::int64_t col_stride) {
    if (data == nullptr) return;
    access = std::max(access, row_access<T>(data, rows, problem.cols, col_stride));
  };
  also(problem.dy, problem.dy_rows, problem.dy_col_stride);
  also(problem.x, problem.x_rows, problem.x_col_stride);
  also(problem.dsum, problem.dsum_rows, problem.dsum_col_stride);
  also(problem.dx, problem.dx_rows, problem.dx_col_stride);
  return problem.rstd_rows.rank > 1 ? std::max(access, Access::kShifted) : access;
}

template <class T, Access kAccess>
void launch_roles(const RmsNormBackwardParams<accumulate_t<T>>& p,
                  const RmsNormBackwardConfig& config, int device, StreamView stream) {
  using tuning::RowForm;
  using Accumulate = accumulate_t<T>;
  std::int64_t row_blocks = 0;
  if (p.dx != nullptr) {
    row_blocks = config.rows.form == RowForm::kWarp
                     ? tuning::ceil_div(p.rows, config.threads / config.lanes)
                     : p.rows * config.blocks_per_row;
  }
  const LaunchShape shape{.blocks = p.column_blocks + row_blocks,
                          .threads = config.threads,
                          .cluster = config.blocks_per_row};
  const auto held = [&]<class Team>() {
    launch<rms_norm_backward_roles_kernel<T, Team, kAccess>>(shape, stream, device, p);
  };
  const auto streamed = [&]<int kVecs>() {
    launch<rms_norm_backward_streamed_kernel<T, kVecs, 8, kAccess>>(shape, stream, device, p);
  };
  switch (config.rows.form) {
    case RowForm::kWarp: return held.template operator()<WarpTeam<Accumulate>>();
    case RowForm::kBlock: return held.template operator()<BlockTeam<Accumulate, 1, 16>>();
    case RowForm::kCluster: return held.template operator()<ClusterTeam<Accumulate, 4, 8>>();
    case RowForm::kStreamed: return streamed.template operator()<4>();
  }
}

template <class T, Access kAccess>
void launch_persistent(const RmsNormBackwardParams<accumulate_t<T>>& p,
                       const RmsNormBackwardConfig& config, int device, StreamView stream) {
  using Accumulate = accumulate_t<T>;
  const LaunchShape shape{.blocks = std::int64_t{config.partial_rows} * config.blocks_per_row,
                          .threads = config.threads,
                          .cluster = config.blocks_per_row,
                          .shared_bytes = static_cast<std::size_t>(config.shared_bytes)};
  const auto with = [&]<class Group>() {
    if (kAccess == Access::kAligned && p.plain) {
      launch<rms_norm_backward_persistent_kernel<T, Group, kAccess, kAccess == Access::kAligned>>(
          shape, stream, device, p);
    } else {
      launch<rms_norm_backward_persistent_kernel<T, Group, kAccess, false>>(shape, stream, device,
                                                                            p);
    }
  };
  constexpr int kBlock = tuning::kPersistentBlock;
  if (config.lanes <= kWarpLanes) {
    with.template operator()<LaneGroup<Accumulate>>();
  } else if (config.vecs == 1 && config.ring == 0) {
    with.template operator()<WarpGroup<Accumulate, 1, 0, kBlock, 2>>();
  } else if (config.ring == 0) {
    config.blocks_per_row == 1 ? with.template operator()<WarpGroup<Accumulate, 2, 0, kBlock, 1>>()
                               : with.template operator()<ClusterGroup<Accumulate, 2, 0>>();
  } else if constexpr (kAccess == Access::kAligned) {
    if (config.vecs == 1) {
      with.template operator()<WarpGroup<Accumulate, 1, 2, tuning::kSmallBlock, 3>>();
    } else if (config.vecs == 2 && config.threads <= tuning::kSmallPairs) {
      with.template operator()<WarpGroup<Accumulate, 2, 2, tuning::kSmallPairs, 2>>();
    } else if (config.vecs == 2) {
      with.template operator()<WarpGroup<Accumulate, 2, 2, kBlock, 1>>();
    } else {
      with.template operator()<ClusterGroup<Accumulate, 4, 2>>();
    }
  }
  const PartialSumsParams<Accumulate> sums{p.partials,  p.dweight,        config.partial_rows,
                                           p.cols,      p.dweight_stride, p.dweight_dtype,
                                           p.accumulate};
  launch<partial_sums_kernel<Accumulate>>(
      {.blocks = tuning::ceil_div(p.cols, kWarpLanes), .threads = kWarpLanes * kWarpLanes}, stream,
      device, sums);
}

template <class T, Access kAccess>
void launch_with(const RmsNormBackwardProblem& problem, const RmsNormBackwardConfig& config,
                 int device, StreamView stream) {
  auto p = rms_norm_backward_params<T>(problem, config);
  if (config.form == tuning::GradientForm::kPersistent) {
    return launch_persistent<T, kAccess>(p, config, device, stream);
  }
  // Blocks of columns read rows that blocks of rows overwrite when dx is in place: one after the
  // other then, with the same bits.
  const bool in_place = p.dx == p.dy || p.dx == p.x;
  if (p.column_blocks > 0 && p.dx != nullptr && in_place) {
    auto columns = p;
    columns.dx = nullptr;
    launch_roles<T, kAccess>(columns, config, device, stream);
    p.column_blocks = 0;
  }
  launch_roles<T, kAccess>(p, config, device, stream);
}

template <class T>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem, int device,
                              StreamView stream) {
  const Access access = access_of<T>(problem);
  // Besides the ring a block has less than 32 KiB.
  const bool ring = access == Access::kAligned &&
                    max_shared_bytes(device) >= tuning::kRingBytes + std::size_t{32 << 10};
  const auto config =
      tuning::rms_norm_backward_config(problem.rows, problem.cols, sizeof(T),
                                       problem.dweight != nullptr, ring, max_cluster_size(device));
  switch (access) {
    case Access::kAligned: return launch_with<T, Access::kAligned>(problem, config, device, stream);
    case Access::kShifted: return launch_with<T, Access::kShifted>(problem, config, device, stream);
    case Access::kAny: return launch_with<T, Access::kAny>(problem, config, device, stream);
  }
}

}  // namespace membound::cuda
