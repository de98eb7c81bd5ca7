// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a configuration to a kernel and its launch, for one storage type and access mode. RMSNorm,
// LayerNorm, gated, unaligned and strided rows are translation units of their own, so that they
// compile in parallel: rms_norm_{plain,centred,gated,unaligned,strided}.cu.
#include <cmath>
#include <type_traits>

#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/norm/rms_norm_kernels.cuh"
#include "cuda/norm/rms_norm_narrow.cuh"
#include "cuda/norm/rms_norm_streamed.cuh"
#include "cuda/row/array.hpp"
#include "cuda/row/bulk_config.hpp"
#include "ops/rms_norm.hpp"

namespace membound::cuda {

template <class T>
void set_params(RmsNormParams<accumulate_t<T>>& p, const RmsNormProblem& problem,
                const tuning::RmsNormConfig& config, const RowSplit& split) {
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
  if (problem.gate.data != nullptr) {
    p.fused_input = problem.gate.data;
    rows.place(problem.gate, p.fused_input_array, p.fused_input_row_stride);
  } else {
    p.fused_input = problem.residual.data;
    rows.place(problem.residual, p.fused_input_array, p.fused_input_row_stride);
  }
  rows.place(problem.residual_out, p.residual_out_array, p.residual_out_row_stride);
  p.mean = static_cast<Accumulate*>(problem.mean.data);
  rows.place_statistic(problem.mean, p.mean_array, p.mean_row_stride);
  rows.place_statistic(problem.rstd, p.rstd_array, p.rstd_row_stride);
  set_rstd(p, problem.cols, problem.eps, Accumulate());
  p.round_before_weight = problem.rounding == Rounding::kBeforeWeight;
  p.plain = problem.is_plain();
  p.centred = problem.centred;
  p.vectors = static_cast<int>(tuning::ceil_div(problem.cols, kPack<T>));
  p.group_elements = std::int64_t{config.vectors_per_item} * config.items_per_thread *
                     config.threads * config.segments_per_group * kPack<T>;
  p.lanes = config.lanes;
  p.blocks_per_row = config.blocks_per_row;
  p.groups = config.groups;
  p.segments_per_group = config.segments_per_group;
  p.vectors_per_item = config.vectors_per_item;
  p.overlap_launch = config.overlap_launch;
}

// Calls launch_as<ThreadGroup>(shape) for rows that go through the bulk pipeline.
template <class LaunchAs>
void launch_bulk_pipeline(const tuning::BulkConfig& config, LaunchAs launch_as) {
  const LaunchShape shape{.blocks = config.blocks,
                          .threads = config.threads,
                          .shared_bytes = static_cast<std::size_t>(config.bytes)};
  config.vectors_per_item == 4 ? launch_as.template operator()<BlockThreadGroup<1, 4>>(shape)
                               : launch_as.template operator()<BlockThreadGroup<1>>(shape);
}

// True if x is the only input and one result of its dtype the only output.
template <FusedInput kFusedInput, class Epilogue>
inline constexpr bool is_plain =
    kFusedInput == FusedInput::kNone && std::is_same_v<Epilogue, StoreResult>;

// Whether very many narrow rows that fill three quarters of their lanes' vectors use half the lanes
// with twice the items per thread, which saves instructions (524288 x 192 RMSNorm, bfloat16 on
// H200: 103 -> 95 us). 16-bit LayerNorm has rms_norm_narrow_kernel.
template <class T, Access kAccess, FusedInput kFusedInput, Centring kCentring, class Epilogue>
inline constexpr bool kCoarsensLanes =
    kAccess == Access::kAligned && is_plain<kFusedInput, Epilogue> &&
    sizeof(T) == (kCentring == Centring::kNever ? 2 : 4);

// Whether the few rows of four vectors per thread have kernels that hold them in registers. float32
// with a residual is slower that way (1 x 5120 on H100: 2.5 -> 3.1 us).
template <class T, Access kAccess, FusedInput kFusedInput, class Epilogue>
inline constexpr bool kHoldsFewInRegisters =
    kAccess == Access::kAligned &&
    (sizeof(T) == 2 ? !Epilogue::kQuantises || kFusedInput == FusedInput::kNone
                    : sizeof(T) == 4 && kFusedInput == FusedInput::kNone);

// Launches very many narrow rows; false if there are no kernels for them. shape: that of one row
// per thread group.
template <class T, Access kAccess, FusedInput kFusedInput, Centring kCentring, class Epilogue>
bool launch_many_narrow(const typename Epilogue::template Params<accumulate_t<T>>& p,
                        const tuning::RmsNormConfig& config, LaunchShape shape, int device,
                        StreamView stream) {
  [[maybe_unused]] const bool three_quarters_full =
      tuning::is_three_quarters_full(p.vectors, config.lanes);
  if constexpr (kAccess == Access::kAligned && kCentring == Centring::kAlways &&
                is_plain<kFusedInput, Epilogue> && sizeof(T) < 8) {
    const auto in_pairs = [&]<bool kThreeQuartersFull>() {
      shape.blocks = tuning::ceil_div(shape.blocks, tuning::kPairRows);
      launch<rms_norm_narrow_kernel<T, kThreeQuartersFull>>(shape, stream, device, p);
      return true;
    };
    const bool fills = p.vectors == config.lanes * config.vectors_per_item;
    if (p.plain && p.heads.count == 1) {
      if constexpr (sizeof(T) == 2) {
        if (three_quarters_full) return in_pairs.template operator()<true>();
      }
      if (!three_quarters_full && (sizeof(T) == 2 || fills))
        return in_pairs.template operator()<false>();
    }
  }
  if constexpr (kCoarsensLanes<T, kAccess, kFusedInput, kCentring, Epilogue>) {
    if (three_quarters_full) {
      using ThreadGroup = LaneThreadGroup<2, 3>;
      shape.blocks = tuning::ceil_div(p.rows, 2 * config.threads / config.lanes);
      launch<rms_norm_row_kernel<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue>>(
          shape, stream, device, p);
      return true;
    }
  }
  return false;
}

// Launches the kernel that a config asks for. Epilogue: where the results go, e.g. StoreResult.
template <class T, Access kAccess, FusedInput kFusedInput, Centring kCentring, class Epilogue>
class NormRowsLaunch {
  using Accumulate = accumulate_t<T>;
  using Params = typename Epilogue::template Params<Accumulate>;
  using RowForm = tuning::RowForm;
  static constexpr int kRounds = RoundsOf<kCentring>::kCount + Epilogue::kRounds;
  static constexpr bool kPlainRows = kAccess == Access::kAligned && is_plain<kFusedInput, Epilogue>;
  // Strided rows have two kernels, within a warp and streamed, but for quantised ones.
  // uses_strided_kernel() sends streamed rows that have a fused input there.
  static constexpr bool kStridedRows = kAccess == Access::kStrided;
  static constexpr bool kStreams = kStridedRows || kPlainRows;
  // Rows of a warp that leave the last quarter of their vectors empty have kernels of their own.
  static constexpr bool kThreeQuartersFull =
      kPlainRows && sizeof(T) < 8 && kCentring == Centring::kAlways;
  // 16-bit rows with a residual take 61 registers, at which only two blocks fit an SM; these
  // kernels are capped for three (9760 x 5376 on H200: 110.5 -> 98.8 us).
  static constexpr bool kHasSmall = kAccess == Access::kAligned && sizeof(T) == 2 &&
                                    kFusedInput == FusedInput::kResidual && !Epilogue::kQuantises &&
                                    kCentring == Centring::kNever;
  static constexpr bool kNeverCoarsened =
      tuning::is_never_coarsened(kPlainRows ? sizeof(T) : 2, kFusedInput == FusedInput::kResidual,
                                 kCentring != Centring::kNever);

 public:
  NormRowsLaunch(const Params& p, const tuning::RmsNormConfig& config, int device,
                 StreamView stream)
      : p_(p),
        config_(config),
        device_(device),
        stream_(stream),
        shape_{.blocks = config.form == RowForm::kWarp
                             ? tuning::ceil_div(p.rows, config.threads / config.lanes)
                             : p.rows * config.blocks_per_row,
               .threads = config.threads,
               .cluster = config.blocks_per_row,
               .overlap_launch = config.overlap_launch} {}

  void run() const {
    if (tuning::is_many_narrow(config_, shape_.blocks) &&
        launch_many_narrow<T, kAccess, kFusedInput, kCentring, Epilogue>(p_, config_, shape_,
                                                                         device_, stream_)) {
      return;
    }
    if constexpr (kAccess == Access::kUnaligned) {
      config_.form == RowForm::kWarp ? held<WarpThreadGroup>() : held<BlockThreadGroup<1>>();
    } else if (config_.form == RowForm::kWarp && config_.items_per_thread > 1) {
      warps();
    } else if (config_.form == RowForm::kWarp) {
      held<WarpThreadGroup>();
    } else if constexpr (kStridedRows && Epilogue::kAnySegmentLength) {
      streamed<0, 16>();
    } else if (config_.form == RowForm::kBlock) {
      block();
    } else if (config_.max_warps == 8) {
      wide<8>();
    } else if constexpr (sizeof(T) == 8) {
      wide<16>();
    }
  }

 private:
  template <class ThreadGroup>
  void held() const {
    LaunchShape staging = shape_;
    if (kStaged<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue::kQuantises>) {
      staging.shared_bytes = std::size_t{kStagedArrays<kFusedInput> * kVectorBytes} *
                             config_.threads * ThreadGroup::kVectors;
    }
    launch<rms_norm_row_kernel<T, ThreadGroup, kAccess, kFusedInput, kCentring, Epilogue>>(
        staging, stream_, device_, p_);
  }
  template <int kVectorsPerItem, int kMaxWarps>
  void streamed() const {
    launch<rms_norm_streamed_kernel<T, kVectorsPerItem, kMaxWarps, kAccess, kFusedInput, kCentring,
                                    Epilogue>>(shape_, stream_, device_, p_);
  }

  template <int kMaxWarps>
  void wide() const {
    if constexpr (!kStridedRows) {
      if (config_.form == RowForm::kCluster) {
        return held<ClusterThreadGroup<Accumulate, 8, kMaxWarps, kRounds>>();
      }
    }
    if constexpr (kStreams) streamed<8, kMaxWarps>();
  }
  // The kernels that one_warp_per_row() chooses from.
  void warps() const {
    if constexpr (kAccess == Access::kAligned && sizeof(T) < 8) {
      if (config_.items_per_thread == 4) return four_items();
      if constexpr (kFusedInput == FusedInput::kNone) {
        if constexpr (kThreeQuartersFull || Epilogue::kQuantises) {
          if (tuning::is_three_quarters_full(p_.vectors, 2 * kWarpLanes))
            return held<CoarsenedWarpThreadGroup<2, 3>>();
        }
        held<CoarsenedWarpThreadGroup<2>>();
      }
    }
  }
  void four_items() const {
    constexpr bool kCentred = kCentring == Centring::kAlways,
                   kPlainX = kFusedInput == FusedInput::kNone;
    constexpr bool kHasKernels =
        kCentred ? kThreeQuartersFull && sizeof(T) == 2
                 : kPlainX || (kFusedInput == FusedInput::kResidual && !Epilogue::kQuantises);
    if constexpr (kHasKernels) {
      if (tuning::takes_five_vectors(p_.vectors)) return held<CoarsenedWarpThreadGroup<4, 5>>();
      if constexpr (kPlainX && (kCentred || Epilogue::kQuantises))
        held<CoarsenedWarpThreadGroup<4, 6>>();
    }
  }
  void block() const {
    if constexpr (kStridedRows) {
      // With kAnySegmentLength rows of one block are streamed as a single group.
      if constexpr (!Epilogue::kAnySegmentLength) {
        config_.vectors_per_item == 4 ? held<BlockThreadGroup<1, 4>>()
                                      : held<BlockThreadGroup<1>>();
      }
    } else if (config_.vectors_per_item == 4) {
      if constexpr (kHoldsFewInRegisters<T, kAccess, kFusedInput, Epilogue>) {
        constexpr bool kLowRegisterPressure =
            sizeof(T) == 4 || (kCentring == Centring::kNever && is_plain<kFusedInput, Epilogue>);
        if (tuning::holds_few_in_registers(config_, p_.rows, multiprocessors(device_),
                                           kLowRegisterPressure)) {
          return held<BlockThreadGroup<1, 4, 4, false>>();
        }
      }
      held<BlockThreadGroup<1, 4>>();
    } else {
      if constexpr (kThreeQuartersFull) {
        if (tuning::is_half_block(config_) && config_.items_per_thread == 2 &&
            tuning::is_three_quarters_full(p_.vectors, 2 * config_.threads)) {
          return held<BlockThreadGroup<2, 2, 3>>();
        }
      }
      if constexpr (!kNeverCoarsened || Epilogue::kQuantises) {
        if (config_.items_per_thread == 2) return held<BlockThreadGroup<2>>();
      }
      if constexpr (kHasSmall) {
        if (config_.threads > 256 && config_.threads <= SmallBlockThreadGroup::kMaxThreads)
          return held<SmallBlockThreadGroup>();
      }
      held<BlockThreadGroup<1>>();
    }
  }

  const Params& p_;
  const tuning::RmsNormConfig& config_;
  const int device_;
  const StreamView stream_;
  const LaunchShape shape_;
};

// What rms_norm_<form>.cu instantiates for each dtype, all in one unit: the machine code of two
// dtypes is nearly the same and compresses well together.
using NormLaunch = void(const RmsNormProblem&, const tuning::RmsNormConfig&, const RowSplit&, int,
                        StreamView);
template <class T, Access kAccess, FusedInput kFusedInput, Centring kCentring>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                     const RowSplit& split, int device, StreamView stream) {
  RmsNormParams<accumulate_t<T>> p;
  set_params<T>(p, problem, config, split);
  NormRowsLaunch<T, kAccess, kFusedInput, kCentring, StoreResult>(p, config, device, stream).run();
}

}  // namespace membound::cuda
