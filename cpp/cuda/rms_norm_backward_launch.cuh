// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// From a problem to its launches for one storage type and way to read rows. Aligned rows, aligned
// rows that are centred, shifted and strided rows are translation units of their own
// (rms_norm_backward_<form>.cu), so that they compile side by side.
#include "cuda/launch.hpp"
#include "cuda/rms_norm_backward_params.cuh"
#include "cuda/rms_norm_backward_persistent.cuh"
#include "cuda/rms_norm_backward_roles.cuh"

namespace membound::cuda {

template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_roles(const RmsNormBackwardParams<accumulate_t<T>>& p,
                  const RmsNormBackwardConfig& config, int device, StreamView stream) {
  using tuning::RowForm;
  using Value = RowSum<T, kCentring>;
  std::int64_t row_blocks = 0;
  if (p.dx != nullptr || p.dgate != nullptr) {
    const std::int64_t rows = p.rows * p.heads.count;
    row_blocks = config.rows.form == RowForm::kWarp
                     ? tuning::ceil_div(rows, config.threads / config.lanes)
                     : rows * config.blocks_per_row;
  }
  LaunchShape shape{.blocks = p.column_blocks + row_blocks,
                    .threads = config.threads,
                    .cluster = config.blocks_per_row};
  const auto held = [&]<class Team>() {
    constexpr ColumnForm kColumns = column_form<T, Team, kAccess, kGated>();
    if (p.column_blocks > 0 && kColumns == ColumnForm::kParked) {
      constexpr std::size_t kBeside = 8 << 10;  // at most; 7.5, which has no room, parks nothing
      const auto bytes = static_cast<std::size_t>(tuning::column_bytes(config.threads));
      if (bytes + kBeside <= max_shared_bytes(device)) shape.shared_bytes = bytes;
    }
    launch<rms_norm_backward_roles_kernel<T, Team, kAccess, kCentring, kGated>>(shape, stream,
                                                                                device, p);
  };
  switch (config.rows.form) {
    case RowForm::kWarp: return held.template operator()<GradientWarpTeam>();
    case RowForm::kBlock:
      if constexpr (column_form<T, GradientBlockTeam, kAccess, kGated>() == ColumnForm::kNarrow) {
        if (p.chunks > tuning::kNarrowChunks) return held.template operator()<GradientWideTeam>();
      }
      return held.template operator()<GradientBlockTeam>();
    case RowForm::kCluster: return held.template operator()<GradientClusterTeam<Value>>();
    case RowForm::kStreamed:
      return launch<rms_norm_backward_streamed_kernel<T, kAccess, kCentring, kGated>>(shape, stream,
                                                                                      device, p);
  }
}

template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_persistent(const RmsNormBackwardParams<accumulate_t<T>>& p,
                       const RmsNormBackwardConfig& config, int device, StreamView stream) {
  using Accumulate = accumulate_t<T>;
  using Value = RowSum<T, kCentring>;
  LaunchShape shape{.blocks = std::int64_t{config.partial_rows} * config.blocks_per_row,
                    .threads = config.threads,
                    .cluster = config.blocks_per_row,
                    .shared_bytes = static_cast<std::size_t>(
                        kAccess == Access::kShifted
                            ? tuning::shifted_ring_bytes(config.vecs, config.lanes, config.threads)
                            : config.shared_bytes)};
  constexpr int kBlock = tuning::kPersistentBlock;
  static constexpr bool kHasPlain = kAccess != Access::kAny && !kGated;
  static constexpr bool kHasMore = kHasPlain && kAccess == Access::kAligned && sizeof(T) < 8;
  const auto as = [&]<class Group, Form kForm>() {
    launch<rms_norm_backward_persistent_kernel<T, Group, kAccess, kForm, kCentring>>(shape, stream,
                                                                                     device, p);
  };
  const auto more_as = [&]<class Group, Form kForm>() {
    if constexpr (kHasMore) {  // alone: beside what Group says, others would be compiled, too
      if constexpr (Group::kVecs == 1 && Group::kRing == 0 && Group::kOneRow) {
        // Beside the next row there are no registers for it (H200, 16384 x 4096 bfloat16, rounded:
        // 140 us, 99 so).
        if constexpr (kForm == Form::kPlainAdd) {
          if (p.steps.rounds < tuning::kRowsForRing) return as.template operator()<Group, kForm>();
        }
        shape.shared_bytes = std::size_t{2 * 2 * kChunkBytes} * config.threads;
        as.template operator()<WarpGroup<Value, 1, 2, kBlock, 2>, kForm>();
      } else {
        as.template operator()<Group, kForm>();
      }
    }
  };
  const auto with = [&]<class Group>() {
    static constexpr Form kOther = !kGated              ? Form::kGeneral
                                   : (Group::kRing > 0) ? Form::kPlainGated
                                                        : Form::kGated;
    if (kHasPlain && p.plain && p.dsum == nullptr) {
      as.template operator()<Group, kHasPlain ? Form::kPlain : kOther>();
    } else if (kHasMore && p.plain) {
      more_as.template operator()<Group, Form::kPlainAdd>();
    } else if (kHasMore && p.everyday && p.dsum == nullptr) {
      more_as.template operator()<Group, Form::kPlainRounded>();
    } else {
      as.template operator()<Group, kOther>();
    }
  };
  // As persistent_shape has it.
  constexpr bool kCrowded = kCentring != Centring::kNever || kGated;
  if (config.lanes <= kWarpLanes) {
    constexpr bool kMayBeEven = kAccess == Access::kAligned && sizeof(T) < 8;
    const bool even = kMayBeEven && p.plain && has_even_rows<T>(p);
    if constexpr (kGated && kMayBeEven) {
      const auto folded = [&]<class Group>() {
        shape.threads = Group::kMaxThreads;
        as.template operator()<Group, Form::kPlainGated>();
        launch_partial_sums(p, device, stream);
      };
      if (p.plain && tuning::folds_four_lanes(p.chunks, config.lanes))
        return even ? folded.template operator()<LaneGroup<Value, false, 4>>()
                    : folded.template operator()<LaneGroup<Value, true, 4>>();
      if constexpr (sizeof(T) == 2) {
        if (p.plain && config.lanes >= tuning::kFewFoldedLanes)
          return even ? folded.template operator()<LaneGroup<Value, false, 2>>()
                      : folded.template operator()<LaneGroup<Value, true, 2>>();
      }
    }
    if constexpr (kMayBeEven && !kGated) {
      if (even) {
        using Group = LaneGroup<Value, false>;
        p.dsum != nullptr ? as.template operator()<Group, Form::kPlainAdd>()
                          : as.template operator()<Group, Form::kPlain>();
        return launch_partial_sums(p, device, stream);
      }
    }
    with.template operator()<LaneGroup<Value, true>>();
  } else if (config.ring == 0) {
    if constexpr (kAccess == Access::kAligned && !kGated) {
      // Others come through the ring, or as shifted rows where there is no room for it.
      if constexpr (!kCrowded) with.template operator()<WarpGroup<Value, 1, 0, kBlock, 2>>();
    } else if (config.blocks_per_row > 1) {
      with.template operator()<ClusterGroup<Value, 2, 0>>();
    } else if (kAccess == Access::kShifted && config.vecs == 2 &&
               config.threads <= tuning::kSmallPairs) {
      static constexpr int kMost = kAccess == Access::kShifted ? tuning::kSmallPairs : kBlock;
      with.template operator()<WarpGroup<Value, 2, 0, kMost, kMost == kBlock ? 1 : 2>>();
    } else if (config.vecs == 2) {
      with.template operator()<WarpGroup<Value, 2, 0, kBlock, 1>>();
    } else {
      with.template operator()<WarpGroup<Value, 1, 0, kBlock, 2>>();
    }
  } else if constexpr (kAccess == Access::kAligned) {
    if (config.blocks_per_row > 1) {
      constexpr int kRing = tuning::kClusterRing;
      if (config.vecs == 2) {
        with.template operator()<ClusterGroup<Value, 2, kRing>>();
      } else if constexpr (!kCrowded) {
        with.template operator()<ClusterGroup<Value, 4, kRing>>();
      } else if constexpr (!kGated && sizeof(T) < 8) {
        with.template operator()<ClusterGroup<Value, 4, kRing, 2, 1, tuning::kSmallFours>>();
      }
    } else if (config.vecs == 4) {
      if constexpr (!kGated && sizeof(T) < 8) {
        with.template operator()<WarpGroup<Value, 4, 2, tuning::kSmallFours, 1>>();
      }
    } else if (config.vecs == 1 && config.threads <= tuning::kSmallBlock) {
      with.template operator()<WarpGroup<Value, 1, 2, tuning::kSmallBlock, 3>>();
    } else if (config.vecs == 1) {
      if constexpr (kCrowded) {
        with.template operator()<WarpGroup<Value, 1, 2, kBlock, 2>>();
      }
    } else if (config.threads <= tuning::kSmallPairs) {
      with.template operator()<WarpGroup<Value, 2, 2, tuning::kSmallPairs, 2>>();
    } else {
      with.template operator()<WarpGroup<Value, 2, 2, kBlock, 1>>();
    }
  }
  launch_partial_sums(p, device, stream);
}

// Blocks of columns read rows that blocks of rows overwrite in place: one after the other then,
// with the same bits.
template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_roles_apart(RmsNormBackwardParams<accumulate_t<T>> p,
                        const RmsNormBackwardConfig& config, int device, StreamView stream) {
  const auto was_read = [&](const void* written) {
    return written != nullptr && (written == p.dy || written == p.x || written == p.gate);
  };
  if (p.column_blocks > 0 && (was_read(p.dx) || was_read(p.dgate))) {
    auto columns = p;
    columns.dx = nullptr;
    columns.dgate = nullptr;
    launch_roles<T, kAccess, kCentring, kGated>(columns, config, device, stream);
    p.column_blocks = 0;
  }
  launch_roles<T, kAccess, kCentring, kGated>(p, config, device, stream);
}

// What rms_norm_backward_<form>.cu instantiates for each dtype.
using GradientLaunch = void(const RmsNormBackwardProblem&, const RmsNormBackwardConfig&,
                            const RowSplit&, int, StreamView);
// kRoles: as kCentring says. Shifted rows of the persistent form are asked here, once for a launch:
// the sums of the bias would cost the others registers.
template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem,
                              const RmsNormBackwardConfig& config, const RowSplit& split,
                              int device, StreamView stream) {
  const auto p = rms_norm_backward_params<T>(problem, config, split);
  if (config.form != tuning::GradientForm::kPersistent) {
    return launch_roles_apart<T, kAccess, kCentring, kGated>(p, config, device, stream);
  }
  if constexpr (kAccess != Access::kShifted) {
    launch_persistent<T, kAccess, kCentring, kGated>(p, config, device, stream);
  } else if (p.centred) {
    launch_persistent<T, kAccess, Centring::kAlways, kGated>(p, config, device, stream);
  } else {
    launch_persistent<T, kAccess, Centring::kNever, kGated>(p, config, device, stream);
  }
}

}  // namespace membound::cuda
