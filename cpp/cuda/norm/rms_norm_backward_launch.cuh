// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launches for one storage type and access. Plain, centred, gated, unaligned and strided rows are
// translation units of their own (rms_norm_backward_<form>.cu), so that they compile in parallel.
#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_backward_params.cuh"
#include "cuda/norm/rms_norm_backward_persistent.cuh"
#include "cuda/norm/rms_norm_backward_specialised.cuh"

namespace membound::cuda {

template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_specialised(const RmsNormBackwardParams<accumulate_t<T>>& p,
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
  const auto held = [&]<class ThreadGroup>() {
    constexpr ColumnForm kColumns = column_form<T, ThreadGroup, kAccess, kGated>();
    if (p.column_blocks > 0 && kColumns == ColumnForm::kStaged) {
      constexpr std::size_t kStaticBytes = 8
                                           << 10;  // static bytes, at most; sm_75 has no room left
      const auto bytes = static_cast<std::size_t>(tuning::column_bytes(config.threads));
      if (bytes + kStaticBytes <= max_shared_bytes(device)) shape.shared_bytes = bytes;
    }
    launch<rms_norm_backward_specialised_kernel<T, ThreadGroup, kAccess, kCentring, kGated>>(
        shape, stream, device, p);
  };
  switch (config.rows.form) {
    case RowForm::kWarp: return held.template operator()<GradientWarpThreadGroup>();
    case RowForm::kBlock:
      if constexpr (column_form<T, GradientBlockThreadGroup, kAccess, kGated>() ==
                    ColumnForm::kNarrow) {
        if (p.vectors > tuning::kNarrowVectors)
          return held.template operator()<GradientWideThreadGroup>();
      }
      return held.template operator()<GradientBlockThreadGroup>();
    case RowForm::kCluster: return held.template operator()<GradientClusterThreadGroup<Value>>();
    case RowForm::kStreamed:
      return launch<rms_norm_backward_streamed_kernel<T, kAccess, kCentring, kGated>>(shape, stream,
                                                                                      device, p);
  }
}

// Launches the persistent kernel of the configuration's shape (persistent_shape).
template <class T, Access kAccess, Centring kCentring, bool kGated>
class PersistentLaunch {
  using Params = RmsNormBackwardParams<accumulate_t<T>>;
  using Value = RowSum<T, kCentring>;
  static constexpr int kBlock = tuning::kPersistentBlock;
  static constexpr int kPairs =
      tuning::two_vector_threads(sizeof(T), kCentring != Centring::kNever, kGated);
  static constexpr bool kHasPlain = kAccess == Access::kAligned && !kGated;
  static constexpr bool kHasMore = kHasPlain && sizeof(T) < 8;
  static constexpr bool kHasBiasOrGate = kCentring != Centring::kNever || kGated;
  static constexpr bool kMayBeEvenlySpaced = kAccess == Access::kAligned && sizeof(T) < 8;
  // True if Group has the next row in registers and a staged counterpart in another kernel.
  template <class Group>
  static constexpr bool kMayStage =
      Group::kVectorsPerItem == 1 && Group::kStages == 0 && Group::kOneRow;

 public:
  PersistentLaunch(const Params& p, const RmsNormBackwardConfig& config, int device,
                   StreamView stream)
      : p_(p),
        config_(config),
        device_(device),
        stream_(stream),
        shape_{.blocks = std::int64_t{config.partial_rows} * config.blocks_per_row,
               .threads = config.threads,
               .cluster = config.blocks_per_row,
               .shared_bytes = static_cast<std::size_t>(config.shared_bytes)} {}

  void run() {
    if (config_.lanes <= kWarpLanes) {
      launch_lane_groups();
    } else if (config_.stages == 0) {
      launch_register_pipeline();
    } else if constexpr (kAccess == Access::kAligned) {
      config_.blocks_per_row > 1 ? launch_cluster_pipeline() : launch_shared_pipeline();
    }
    launch_partial_sums(p_, device_, stream_, added_pairs_);
  }

 private:
  template <class Group, Form kForm>
  void as() {
    constexpr bool kMayPair = kAccess == Access::kAligned && kForm < Form::kPlainGated &&
                              tuning::may_pair(sizeof(T), kCentring != Centring::kNever);
    using Pairs = typename PairsOf<Group, kMayPair>::Type;
    if constexpr (Pairs::kPaired) pair_blocks();
    launch<rms_norm_backward_persistent_kernel<T, Pairs, kAccess, kForm, kCentring>>(
        shape_, stream_, device_, p_);
  }
  // One block does the work of two where shared memory has room: half as many partial sums save 1.2
  // us for each 4 MiB.
  void pair_blocks() {
    if (!config_.paired) return;
    const std::size_t bytes = 2 * shape_.shared_bytes;
    if (bytes + tuning::kMaxStaticSharedBytes > max_shared_bytes(device_)) return;
    shape_.blocks /= 2;
    shape_.threads *= 2;
    shape_.shared_bytes = bytes;
    added_pairs_ = true;
  }
  // Forms that only aligned rows have. A Group with the next row in registers is replaced here by
  // its staged counterpart, so that the form is not compiled for both.
  template <class Group, Form kForm>
  void launch_optional_form() {
    if constexpr (kMayStage<Group>) {
      // With the next row in registers these forms spill (16384 x 4096 bfloat16, rounded: 140 -> 99
      // us).
      if constexpr (kForm == Form::kPlainAdd) {
        if (p_.steps.rounds < tuning::kMinRowsForStages) return as<Group, kForm>();
      }
      shape_.shared_bytes = std::size_t{2 * 2 * kVectorBytes} * config_.threads;
      as<WarpGroup<Value, 1, 2, kBlock, 2>, kForm>();
    } else {
      as<Group, kForm>();
    }
  }
  template <class Group>
  bool is_plain_alone() const {
    return p_.dsum == nullptr && (plain_has_offset<Group, kCentring> ? p_.common : p_.plain);
  }
  template <class Group>
  void with() {
    static constexpr Form kOther = !kGated                ? Form::kGeneral
                                   : (Group::kStages > 0) ? Form::kPlainGated
                                                          : Form::kGated;
    if constexpr (kHasMore && kMayStage<Group>) {
      if (is_plain_alone<Group>() &&
          tuning::stages_plain_rows(config_, p_.vectors, p_.steps.rounds)) {
        return launch_optional_form<Group, Form::kPlainRounded>();
      }
    }
    if constexpr (kHasPlain) {
      if (is_plain_alone<Group>()) return as<Group, Form::kPlain>();
    }
    if constexpr (kHasMore) {
      if (p_.plain) return launch_optional_form<Group, Form::kPlainAdd>();
      if constexpr (!plain_has_offset<Group, kCentring>) {
        if (p_.common && p_.dsum == nullptr)
          return launch_optional_form<Group, Form::kPlainRounded>();
      }
    }
    as<Group, kOther>();
  }

  void launch_lane_groups() {
    using Group = LaneGroup<Value, false>;
    const bool even = kMayBeEvenlySpaced && (p_.plain || is_plain_alone<Group>()) &&
                      has_evenly_spaced_rows<T>(p_);
    if constexpr (kMayBeEvenlySpaced && kGated) {
      if (p_.plain && tuning::coarsens_four_lanes(p_.vectors, config_.lanes))
        return coarsened<4>(even);
      if constexpr (sizeof(T) == 2) {
        if (p_.plain && config_.lanes >= tuning::kFewCoarsenedLanes) return coarsened<2>(even);
      }
    } else if constexpr (kMayBeEvenlySpaced) {
      if (even)
        return p_.dsum != nullptr ? as<Group, Form::kPlainAdd>() : as<Group, Form::kPlain>();
    }
    with<LaneGroup<Value, true>>();
  }
  // kLanes: lanes of the tree whose vectors one lane holds.
  template <int kLanes>
  void coarsened(bool even) {
    shape_.threads = LaneGroup<Value, true, kLanes>::kMaxThreads;
    even ? as<LaneGroup<Value, false, kLanes>, Form::kPlainGated>()
         : as<LaneGroup<Value, true, kLanes>, Form::kPlainGated>();
  }

  void launch_register_pipeline() {
    if constexpr (kAccess == Access::kAligned && !kGated) {
      // With bias sums or a gate, rows are staged, or go as strided ones if there is no room for
      // that.
      if constexpr (!kHasBiasOrGate) with<WarpGroup<Value, 1, 0, kBlock, 2>>();
    } else if (config_.blocks_per_row > 1) {
      with<ClusterGroup<Value, 2, 0>>();
    } else if (config_.vectors_per_item == 2) {
      with<WarpGroup<Value, 2, 0, kBlock, 1>>();
    } else {
      with<WarpGroup<Value, 1, 0, kBlock, 2>>();
    }
  }
  void launch_shared_pipeline() {
    if (config_.vectors_per_item == 4) {
      if constexpr (!kGated && sizeof(T) < 8)
        with<WarpGroup<Value, 4, 2, tuning::kFourVectorThreads, 1>>();
    } else if (config_.vectors_per_item == 1 && config_.threads <= tuning::kSmallBlock) {
      with<WarpGroup<Value, 1, 2, tuning::kSmallBlock, 3>>();
    } else if (config_.vectors_per_item == 1) {
      if constexpr (kHasBiasOrGate) with<WarpGroup<Value, 1, 2, kBlock, 2>>();
    } else if (config_.threads <= kPairs) {
      with<WarpGroup<Value, 2, 2, kPairs, 2>>();
    } else {
      with<WarpGroup<Value, 2, 2, kBlock, 1>>();
    }
  }
  void launch_cluster_pipeline() {
    constexpr int kStages = tuning::kClusterStages;
    if constexpr (kGated) {  // two vectors per thread, whatever the width
      config_.threads <= tuning::kTwoVectorThreads
          ? with<ClusterGroup<Value, 2, kStages, 1, 1, tuning::kTwoVectorThreads, 2>>()
          : with<ClusterGroup<Value, 2, kStages>>();
    } else if (config_.vectors_per_item == 2) {
      with<ClusterGroup<Value, 2, kStages>>();
    } else if constexpr (!kHasBiasOrGate) {
      with<ClusterGroup<Value, 4, kStages>>();
    } else if constexpr (sizeof(T) < 8) {
      with<ClusterGroup<Value, 4, kStages, 2, 1, tuning::kFourVectorThreads>>();
    }
  }

  const Params& p_;
  const RmsNormBackwardConfig& config_;
  const int device_;
  const StreamView stream_;
  LaunchShape shape_;
  bool added_pairs_ = false;
};

// If row blocks overwrite in place what column blocks read, column blocks are launched first, with
// the same bits.
template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_specialised_ordered(RmsNormBackwardParams<accumulate_t<T>> p,
                                const RmsNormBackwardConfig& config, int device,
                                StreamView stream) {
  const auto was_read = [&](const void* written) {
    return written != nullptr && (written == p.dy || written == p.x || written == p.gate);
  };
  if (p.column_blocks > 0 && (was_read(p.dx) || was_read(p.dgate))) {
    auto columns = p;
    columns.dx = nullptr;
    columns.dgate = nullptr;
    launch_specialised<T, kAccess, kCentring, kGated>(columns, config, device, stream);
    p.column_blocks = 0;
  }
  launch_specialised<T, kAccess, kCentring, kGated>(p, config, device, stream);
}

// What rms_norm_backward_<form>.cu instantiates for each dtype. Unaligned rows come here only if
// they are few.
using GradientLaunch = void(const RmsNormBackwardProblem&, const RmsNormBackwardConfig&,
                            const RowSplit&, int, StreamView);
template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem,
                              const RmsNormBackwardConfig& config, const RowSplit& split,
                              int device, StreamView stream) {
  const auto p = rms_norm_backward_params<T>(problem, config, split);
  if (config.form != tuning::GradientForm::kPersistent) {
    return launch_specialised_ordered<T, kAccess, kCentring, kGated>(p, config, device, stream);
  }
  if constexpr (kAccess != Access::kUnaligned)
    PersistentLaunch<T, kAccess, kCentring, kGated>(p, config, device, stream).run();
}

}  // namespace membound::cuda
