// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/dispatch.hpp"
#include "cuda/centring.cuh"
#include "cuda/launch.hpp"
#include "cuda/reduce.cuh"
#include "cuda/row_array.hpp"
#include "cuda/tuning/rms_norm_backward.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

template <class T, Access kAccess, Centring kCentring>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem,
                              const tuning::RmsNormBackwardConfig& config, const RowSplit& split,
                              int device, StreamView stream);

template <class T>
RowAccess<T> access_of(const RmsNormBackwardProblem& problem) {
  RowAccess<T> access(problem.rows, problem.cols);
  access.also_columns(problem.weight, problem.weight_dtype, problem.weight_stride);
  access.also_rows(problem.dy, problem.dy_rows, problem.dy_col_stride);
  access.also_rows(problem.x, problem.x_rows, problem.x_col_stride);
  access.also_rows(problem.dsum, problem.dsum_rows, problem.dsum_col_stride);
  access.also_rows(problem.dx, problem.dx_rows, problem.dx_col_stride);
  access.also_statistic(problem.mean, problem.mean_rows);
  access.also_statistic(problem.rstd, problem.rstd_rows);
  return access;
}

void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.dtype, "rms_norm_backward", [&]<class T>() {
    const int device = current_device();
    const RowAccess<T> asked = access_of<T>(problem);
    const RowSplit split = asked.split();
    // Only rows of lanes are counted in two axes (persistent_team.cuh).
    const bool narrow = problem.cols <= kWarpLanes * kPack<T>;
    const Access access =
        split.extent == 0 || narrow ? asked.access() : std::max(asked.access(), Access::kShifted);
    // Besides the ring a block has less than 32 KiB.
    const bool ring = access == Access::kAligned &&
                      max_shared_bytes(device) >= tuning::kRingBytes + std::size_t{32 << 10};
    const bool sums = problem.dweight != nullptr || problem.dbias != nullptr;
    const auto config =
        tuning::rms_norm_backward_config(problem.rows, problem.cols, sizeof(T), sums, ring,
                                         max_cluster_size(device), problem.centred);
    const auto go = [&]<Access kAccess, Centring kCentring>() {
      launch_rms_norm_backward<T, kAccess, kCentring>(problem, config, split, device, stream);
    };
    if (access == Access::kAny) {
      go.template operator()<Access::kAny, Centring::kAsked>();
    } else if (access == Access::kShifted) {
      go.template operator()<Access::kShifted, Centring::kAsked>();
    } else if (problem.centred) {
      go.template operator()<Access::kAligned, Centring::kAlways>();
    } else {
      go.template operator()<Access::kAligned, Centring::kNever>();
    }
  });
}

}  // namespace membound::cuda
