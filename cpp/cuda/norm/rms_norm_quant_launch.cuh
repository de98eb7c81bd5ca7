// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a problem to a launch, for one storage type and access mode; rms_norm_quant_rows.cu
// instantiates aligned and strided rows of each type.
#include "cuda/norm/rms_norm_launch.cuh"
#include "cuda/norm/rms_norm_quant_epilogue.cuh"
#include "ops/rms_norm_quant.hpp"

namespace membound::cuda {

template <class T>
RmsNormQuantParams<accumulate_t<T>> quant_params(const RmsNormQuantProblem& problem,
                                                 const tuning::RmsNormConfig& config,
                                                 const RowSplit& split) {
  RmsNormQuantParams<accumulate_t<T>> p;
  set_params<T>(p, problem.norm, config, split);
  const RowArrayBuilder rows{problem.norm.rows, problem.norm.cols, split};
  p.quantised = problem.out;
  p.quantised_dtype = problem.out_dtype;
  rows.place(problem.out, problem.out_rows, problem.out_col_stride, 1, p.quantised_array,
             p.quantised_row_stride);
  p.static_scale = problem.static_scale;
  p.scale = problem.scale;
  rows.place(problem.scale, problem.scale_rows, 0, sizeof(float), p.scale_array,
             p.scale_row_stride);
  p.scale_col_stride = problem.scale_col_stride;
  p.group_vectors =
      problem.group_size >= problem.norm.cols ? 0 : static_cast<int>(problem.group_size / kPack<T>);
  p.scale_upper_bound = problem.scale_upper_bound;
  return p;
}

using QuantLaunch = void(const RmsNormQuantProblem&, const tuning::RmsNormConfig&, const RowSplit&,
                         int, StreamView);
template <class T, Access kAccess>
void launch_rms_norm_quant(const RmsNormQuantProblem& problem, const tuning::RmsNormConfig& config,
                           const RowSplit& split, int device, StreamView stream) {
  const auto p = quant_params<T>(problem, config, split);
  const auto go = [&]<FusedInput kFusedInput>() {
    NormRowsLaunch<T, kAccess, kFusedInput, Centring::kNever, QuantiseResult<kAccess>>(
        p, config, device, stream)
        .run();
  };
  problem.norm.residual.data == nullptr ? go.template operator()<FusedInput::kNone>()
                                        : go.template operator()<FusedInput::kResidual>();
}

}  // namespace membound::cuda
