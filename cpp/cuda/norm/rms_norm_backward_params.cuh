// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Translates a problem and its configuration into parameters of the rms_norm_backward kernels.
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/array.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

using tuning::RmsNormBackwardConfig;

template <class T>
RowBytes row_bytes(const RmsNormBackwardParams<accumulate_t<T>>& p) {
  const auto bytes = [](std::int64_t stride, std::size_t size) {
    return static_cast<std::int32_t>(stride * static_cast<std::int64_t>(size));
  };
  constexpr std::size_t kStatistic = sizeof(accumulate_t<T>);
  return {.dy = bytes(p.dy_row_stride, sizeof(T)),
          .x = bytes(p.x_row_stride, sizeof(T)),
          .dsum = bytes(p.dsum_row_stride, sizeof(T)),
          .gate = bytes(p.gate_row_stride, sizeof(T)),
          .dx = bytes(p.dx_row_stride, sizeof(T)),
          .dgate = bytes(p.dgate_row_stride, sizeof(T)),
          .rstd = bytes(p.rstd_row_stride, kStatistic),
          .mean = bytes(p.mean_row_stride, kStatistic)};
}

// groups: thread groups of a block.
template <class Accumulate>
RowSteps row_steps(const RmsNormBackwardParams<Accumulate>& p, int groups) {
  const int step = std::max(1, p.groups_of_head * groups);
  const std::int64_t rows = step * p.heads.count;
  const RowBytes& bytes = p.row_bytes;
  return {.step = step,
          .rounds = static_cast<int>(p.rows / step),
          .remainder = static_cast<int>(p.rows % step),
          .dy = rows * bytes.dy,
          .x = rows * bytes.x,
          .dsum = rows * bytes.dsum,
          .gate = rows * bytes.gate,
          .dx = rows * bytes.dx,
          .dgate = rows * bytes.dgate,
          .rstd = rows * bytes.rstd,
          .mean = rows * bytes.mean};
}

template <class T>
RmsNormBackwardParams<accumulate_t<T>> rms_norm_backward_params(
    const RmsNormBackwardProblem& problem, const RmsNormBackwardConfig& config,
    const RowSplit& split) {
  using Accumulate = accumulate_t<T>;
  RmsNormBackwardParams<Accumulate> p;
  p.dy = problem.dy.data;
  p.x = problem.x.data;
  p.dsum = problem.dsum.data;
  auto offset = static_cast<Accumulate>(problem.weight_offset);
  if (offset == Accumulate(0)) offset = Accumulate(-0.0);  // adding -0 changes nothing
  p.weight = {problem.weight.data, problem.weight.stride, offset, problem.weight.dtype,
              sizeof(T) == 2 && problem.weight.dtype == DType::kFloat32};
  p.weight.head_stride = problem.weight.head_stride;
  p.heads = split_heads(problem.heads, problem.rows);
  p.mean = static_cast<const Accumulate*>(problem.mean.data);
  p.rstd = static_cast<const Accumulate*>(problem.rstd.data);
  p.dx = problem.dx.data;
  const auto partials = static_cast<Accumulate*>(problem.workspace);
  p.dweight = {problem.dweight.data, problem.dweight.stride, problem.dweight.dtype, partials,
               problem.dweight.head_stride};
  p.dbias = {problem.dbias.data, problem.dbias.stride, problem.dbias.dtype,
             partials + std::int64_t{config.partial_rows} * problem.cols,
             problem.dbias.head_stride};
  p.rows = problem.rows / problem.heads;
  p.gate = problem.gate.data;
  p.dgate = problem.dgate.data;
  p.norm_before_gate = problem.norm_before_gate;
  p.cols = problem.cols;
  p.split = split;
  const RowArrayBuilder rows{problem.rows, problem.cols, split};
  rows.place(problem.dy, p.dy_array, p.dy_row_stride);
  rows.place(problem.x, p.x_array, p.x_row_stride);
  rows.place(problem.dsum, p.dsum_array, p.dsum_row_stride);
  rows.place(problem.dx, p.dx_array, p.dx_row_stride);
  rows.place(problem.gate, p.gate_array, p.gate_row_stride);
  rows.place(problem.dgate, p.dgate_array, p.dgate_row_stride);
  rows.place_statistic(problem.mean, p.mean_array, p.mean_row_stride);
  rows.place_statistic(problem.rstd, p.rstd_array, p.rstd_row_stride);
  p.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  p.accumulate = problem.accumulate_sums;
  p.centred = problem.centred;
  p.common = problem.is_common() && (problem.heads == 1 || config.lanes <= kWarpLanes);
  p.plain = p.common && problem.is_plain();
  p.inverse_cols = Accumulate(1) / static_cast<Accumulate>(problem.cols);
  p.vectors = static_cast<int>(tuning::ceil_div(problem.cols, kPack<T>));
  p.lanes = config.lanes;
  p.blocks_per_row = config.blocks_per_row;
  p.groups_of_head = static_cast<int>(config.partial_rows / problem.heads);
  p.paired = config.paired;
  p.row_bytes = row_bytes<T>(p);
  p.steps = row_steps(p, config.threads / std::max(1, config.lanes));
  p.groups = config.rows.groups;
  p.segments_per_group = config.rows.segments_per_group;
  p.column_blocks = static_cast<int>(config.column_blocks);
  return p;
}

// Defined in rms_norm_backward.cu, once for all translation units. pairs_added: the blocks have
// added up the pairs.
template <class Accumulate>
void launch_partial_sums(const RmsNormBackwardParams<Accumulate>& p, int device, StreamView stream,
                         bool pairs_added = false);

}  // namespace membound::cuda
