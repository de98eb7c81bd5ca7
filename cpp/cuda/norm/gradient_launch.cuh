// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a plan of a gradient to its kernels: the table of all kernels that a unit has.
#include <tuple>
#include <type_traits>

#include "cuda/launch/launch.hpp"
#include "cuda/norm/gradient_plan.hpp"
#include "cuda/norm/planned.cuh"
#include "cuda/norm/rms_norm_backward_bulk.cuh"
#include "cuda/norm/rms_norm_backward_packed.cuh"
#include "cuda/norm/rms_norm_backward_params.cuh"
#include "cuda/norm/rms_norm_backward_persistent.cuh"
#include "cuda/norm/rms_norm_backward_specialised.cuh"

namespace membound::cuda {

using tuning::GradientKernel;
using tuning::GradientPlan;
using tuning::GradientUnit;

// The thread groups of kernels, in the order of GradientKernel; void: the kernel has none.
template <class T, GradientVariant kVariant>
struct GradientGroups {
  static constexpr bool kCentred = kVariant.centring != Centring::kNever;
  static constexpr int kBlock = tuning::kPersistentBlock, kSmall = tuning::kSmallBlock;
  static constexpr int kFour = tuning::kFourVectorThreads, kStages = tuning::kClusterStages;
  static constexpr int kTwo = tuning::two_vector_threads(sizeof(T), kCentred, kVariant.gated());
  static constexpr int kBulkTwo =
      tuning::bulk_two_vector_threads(sizeof(T), kVariant.form == Form::kPlainAdd, kCentred);
  // One block less per SM where registers would spill (bfloat16 LayerNorm 32768 x 3001: 289 -> 247
  // us).
  static constexpr int kBulkBlocks = kCentred ? 2 : 3;
  static constexpr bool kPaired = tuning::has_pairs(GradientKernel::kStaged1, kVariant, sizeof(T));
  using Value = RowSum<T, kVariant.centring>;
  using Types =
      std::tuple<GradientWarpThreadGroup, GradientBlockThreadGroup, GradientWideThreadGroup,
                 GradientClusterThreadGroup<Value>, void,
                 // persistent
                 LaneGroup<Value, true>, LaneGroup<Value, false>, LaneGroup<Value, true, 2>,
                 LaneGroup<Value, false, 2>, LaneGroup<Value, true, 4>, LaneGroup<Value, false, 4>,
                 WarpGroup<Value, 1, 0, kBlock, 2, kPaired>, WarpGroup<Value, 2, 0, kBlock, 1>,
                 ClusterGroup<Value, 2, 0>, WarpGroup<Value, 1, 2, kSmall, 3>,
                 WarpGroup<Value, 1, 2, kBlock, 2, kPaired>, WarpGroup<Value, 2, 2, kTwo, 2>,
                 WarpGroup<Value, 2, 2, kBlock, 1>, WarpGroup<Value, 4, 2, kFour, 1>,
                 ClusterGroup<Value, 2, kStages>,
                 ClusterGroup<Value, 2, kStages, 1, 1, tuning::kTwoVectorThreads, 2>,
                 ClusterGroup<Value, 4, kStages>, ClusterGroup<Value, 4, kStages, 2, 1, kFour>,
                 // bulk
                 WarpGroup<Value, 1, 0, kSmall, kBulkBlocks>, WarpGroup<Value, 1, 0, kBlock, 2>,
                 WarpGroup<Value, 2, 0, kBulkTwo, 2>, WarpGroup<Value, 2, 0, kBlock, 1>,
                 WarpGroup<Value, 4, 0, tuning::kThreeStageThreads, 1>,
                 WarpGroup<Value, 4, 0, kFour, 1>, ClusterGroup<Value, 2, 0>>;
};

template <class T, GradientVariant kVariant, GradientKernel kKernel>
constexpr auto gradient_kernel() {
  constexpr Access kAccess = kVariant.access;
  constexpr Centring kCentring = kVariant.centring;
  constexpr FusedInput kFused =
      kVariant.form == Form::kPlainAdd ? FusedInput::kResidual : FusedInput::kNone;
  if constexpr (kKernel == GradientKernel::kPacked) {
    return &rms_norm_backward_packed_kernel<T, kFused, kCentring>;
  } else if constexpr (kKernel == GradientKernel::kStreamedRows) {
    return &rms_norm_backward_streamed_kernel<T, kAccess, kCentring, kVariant.gated()>;
  } else {
    using Group = std::tuple_element_t<static_cast<int>(kKernel),
                                       typename GradientGroups<T, kVariant>::Types>;
    if constexpr (tuning::is_specialised(kKernel)) {
      return &rms_norm_backward_specialised_kernel<T, Group, kAccess, kCentring, kVariant.gated()>;
    } else if constexpr (tuning::is_bulk(kKernel)) {
      return &rms_norm_backward_bulk_kernel<T, Group, kFused, kCentring>;
    } else {
      static_assert(plain_has_offset<Group, kCentring> ==
                        tuning::plain_takes_offset(kKernel, kCentring) ||
                    kAccess != Access::kAligned);
      return &rms_norm_backward_persistent_kernel<T, Group, kAccess, kVariant.form, kCentring>;
    }
  }
}

template <class T, GradientVariant kVariant, GradientKernel kKernel>
void launch_gradient_kernel(const GradientPlan& plan, const RmsNormBackwardProblem& problem,
                            const RowSplit& split, int device, StreamView stream) {
  constexpr auto kFunction = gradient_kernel<T, kVariant, kKernel>();
  auto p = rms_norm_backward_params<T>(problem, plan.config, split);
  LaunchShape shape{.blocks = plan.blocks,
                    .threads = plan.threads,
                    .cluster = plan.config.blocks_per_row,
                    .shared_bytes = static_cast<std::size_t>(plan.shared_bytes)};
  if constexpr (kKernel == GradientKernel::kPacked) {
    const PackedGradientParams<accumulate_t<T>> packed{p, plan.tile_vectors};
    launch<kFunction>(shape, stream, device, packed);
  } else if (plan.columns_first) {
    auto columns = p;
    columns.dx = nullptr;
    columns.dgate = nullptr;
    p.column_blocks = 0;
    LaunchShape of_columns = shape;
    of_columns.blocks = plan.config.column_blocks;
    shape.shared_bytes = 0;
    launch<kFunction>(of_columns, stream, device, columns);
    launch<kFunction>(shape, stream, device, p);
  } else {
    launch<kFunction>(shape, stream, device, p);
  }
  if constexpr (!tuning::is_specialised(kKernel))
    launch_partial_sums<accumulate_t<T>>(p, device, stream, plan.adds_pairs);
}

// Instantiated by gradient_unit.cu.in, for all dtypes at once, as launch_norm is.
template <GradientUnit kUnit>
void launch_gradient(const GradientPlan& plan, const RmsNormBackwardProblem& problem,
                     const RowSplit& split, int device, StreamView stream) {
  launch_planned<kUnit, tuning::kGradientVariants>(
      plan, problem.x.dtype, "rms_norm_backward",
      [&]<class T, GradientVariant kVariant, GradientKernel kKernel>() {
        launch_gradient_kernel<T, kVariant, kKernel>(plan, problem, split, device, stream);
      });
}

}  // namespace membound::cuda
