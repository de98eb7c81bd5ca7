// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a plan to its kernel: parameters, and the table of all kernels that a unit has.
#include <tuple>
#include <type_traits>

#include "cuda/launch/launch.hpp"
#include "cuda/norm/plan.hpp"
#include "cuda/norm/planned.cuh"
#include "cuda/norm/rms_norm_bulk.cuh"
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_narrow.cuh"
#include "cuda/norm/rms_norm_packed.cuh"
#include "cuda/norm/rms_norm_quant_epilogue.cuh"
#include "cuda/norm/rms_norm_streamed.cuh"
#include "cuda/row/array.hpp"
#include "ops/rms_norm_quant.hpp"

namespace membound::cuda {

using tuning::NormKernel;
using tuning::NormPlan;
using tuning::NormUnit;

template <class T>
void set_params(RmsNormParams<accumulate_t<T>>& p, const RmsNormProblem& problem,
                const NormPlan& plan, const RowSplit& split) {
  using Accumulate = accumulate_t<T>;
  p.x = problem.x.data;
  const auto columns = [](const void* data, DType dtype, std::int64_t stride, double offset) {
    return AffineArray<Accumulate>{data, stride, static_cast<Accumulate>(offset), dtype,
                                   sizeof(T) == 2 && dtype == DType::kFloat32};
  };
  p.weight = columns(problem.weight.data, problem.weight.dtype, problem.weight.stride,
                     problem.weight_offset);
  p.weight.head_stride = problem.weight.head_stride;
  p.bias = columns(problem.bias.data, problem.bias.dtype, problem.bias.stride, 0.0);
  p.bias.head_stride = problem.bias.head_stride;
  p.heads = split_heads(problem.heads, problem.rows);
  p.out = problem.out.data;
  p.rstd = static_cast<Accumulate*>(problem.rstd.data);
  p.norm_before_gate = problem.norm_before_gate;
  p.residual_out = problem.residual_out.data;
  p.rows = problem.rows;
  p.cols = problem.cols;
  p.split = split;
  const RowArrayBuilder rows{problem.rows, problem.cols, split};
  rows.place(problem.x, p.x_array, p.x_row_stride);
  rows.place(problem.out, p.out_array, p.out_row_stride);
  const InputRows& fused = problem.gate.data != nullptr ? problem.gate : problem.residual;
  p.fused_input = fused.data;
  rows.place(fused, p.fused_input_array, p.fused_input_row_stride);
  rows.place(problem.residual_out, p.residual_out_array, p.residual_out_row_stride);
  p.mean = static_cast<Accumulate*>(problem.mean.data);
  rows.place_statistic(problem.mean, p.mean_array, p.mean_row_stride);
  rows.place_statistic(problem.rstd, p.rstd_array, p.rstd_row_stride);
  set_rstd(p, problem.cols, problem.eps, Accumulate());
  p.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  p.plain = problem.is_plain();
  p.centred = problem.centred;
  p.vectors = static_cast<int>(tuning::ceil_div(problem.cols, kPack<T>));
  const tuning::RmsNormConfig& row = plan.row;
  p.group_elements = std::int64_t{row.vectors_per_item} * row.items_per_thread * row.threads *
                     row.segments_per_group * kPack<T>;
  p.lanes = row.lanes;
  p.blocks_per_row = row.blocks_per_row;
  p.groups = row.groups;
  p.segments_per_group = row.segments_per_group;
  p.vectors_per_item = row.vectors_per_item;
  p.overlap_launch = plan.overlap_launch;
}

template <class T>
void set_quant_params(RmsNormQuantParams<accumulate_t<T>>& p, const RmsNormQuantProblem& problem,
                      const RowSplit& split) {
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
}

// The thread groups of row kernels in the order of NormKernel.
template <class Value, int kRounds>
using NormGroups =
    std::tuple<WarpThreadGroup, LaneThreadGroup<2, 3>, CoarsenedWarpThreadGroup<2>,
               CoarsenedWarpThreadGroup<2, 3>, CoarsenedWarpThreadGroup<4, 5>,
               CoarsenedWarpThreadGroup<4, 6>, BlockThreadGroup<1>, SmallBlockThreadGroup,
               BlockThreadGroup<2>, BlockThreadGroup<2, 2, 3>, BlockThreadGroup<1, 4>,
               BlockThreadGroup<1, 4, 4, false>, ClusterThreadGroup<Value, 8, 8, kRounds>>;
static_assert(SmallBlockThreadGroup::kMaxThreads == tuning::kSmallBlock);

template <class T, NormVariant kVariant, NormKernel kKernel>
constexpr auto norm_kernel() {
  using enum NormKernel;
  constexpr Access kAccess = kVariant.access;
  constexpr FusedInput kFused = kVariant.fused_input;
  constexpr Centring kCentring = kVariant.centring;
  using Epilogue = std::conditional_t<kVariant.quantised, QuantiseResult<kAccess>, StoreResult>;
  constexpr int kRounds = RoundsOf<kCentring>::kCount + Epilogue::kRounds;
  if constexpr (kKernel == kPairs || kKernel == kPairsThreeQuarters) {
    return &rms_norm_narrow_kernel<T, kKernel == kPairsThreeQuarters>;
  } else if constexpr (kKernel == kPacked || kKernel == kPackedThreeQuarters) {
    return &rms_norm_packed_kernel<T, kFused, kCentring, kKernel == kPackedThreeQuarters>;
  } else if constexpr (kKernel == kBulk || kKernel == kBulk4Vectors) {
    using Group = BlockThreadGroup<1, kKernel == kBulk4Vectors ? 4 : 2>;
    return &rms_norm_bulk_kernel<T, Group, kFused, kCentring>;
  } else if constexpr (kKernel == kStreamed || kKernel == kStreamedWide) {
    constexpr bool kAnyLength = kAccess == Access::kStrided && Epilogue::kAnySegmentLength;
    constexpr int kWarps = kAnyLength || kKernel == kStreamedWide ? 16 : 8;
    return &rms_norm_streamed_kernel < T, kAnyLength ? 0 : 8, kWarps, kAccess, kFused, kCentring,
           Epilogue > ;
  } else {
    using Group =
        std::tuple_element_t<static_cast<int>(kKernel), NormGroups<accumulate_t<T>, kRounds>>;
    static_assert(Group::kVectors == tuning::tile_of(kKernel).vectors &&
                  Group::kStagesRow == tuning::tile_of(kKernel).staged);
    return &rms_norm_row_kernel<T, Group, kAccess, kFused, kCentring, Epilogue>;
  }
}

// Launches the plan's kernel. quant: null unless the result is quantised.
template <class T, NormVariant kVariant, NormKernel kKernel>
void launch_norm_kernel(const NormPlan& plan, const RmsNormProblem& problem,
                        const RmsNormQuantProblem* quant, const RowSplit& split, int device,
                        StreamView stream) {
  constexpr bool kPacks =
      kKernel == NormKernel::kPacked || kKernel == NormKernel::kPackedThreeQuarters;
  using Accumulate = accumulate_t<T>;
  using Params = std::conditional_t<
      kVariant.quantised, RmsNormQuantParams<Accumulate>,
      std::conditional_t<kPacks, RmsNormPackedParams<Accumulate>, RmsNormParams<Accumulate>>>;
  Params p;
  set_params<T>(p, problem, plan, split);
  if constexpr (kVariant.quantised) set_quant_params<T>(p, *quant, split);
  if constexpr (kPacks) {
    p.tile_rows = plan.tile_rows;
    p.tile_vectors = plan.tile_vectors;
  }
  launch<norm_kernel<T, kVariant, kKernel>()>(
      {.blocks = plan.blocks,
       .threads = plan.row.threads,
       .cluster = plan.row.blocks_per_row,
       .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
       .overlap_launch = plan.overlap_launch},
      stream, device, p);
}

// Instantiated by norm_unit.cu.in, for all dtypes at once: the machine code of two of them is
// nearly the same and compresses well together.
template <NormUnit kUnit>
void launch_norm(const NormPlan& plan, const RmsNormProblem& problem,
                 const RmsNormQuantProblem* quant, const RowSplit& split, int device,
                 StreamView stream) {
  launch_planned<kUnit, tuning::kNormVariants>(
      plan, problem.x.dtype, "rms_norm", [&]<class T, NormVariant kVariant, NormKernel kKernel>() {
        launch_norm_kernel<T, kVariant, kKernel>(plan, problem, quant, split, device, stream);
      });
}

}  // namespace membound::cuda
