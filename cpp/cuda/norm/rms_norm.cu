// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/centring.cuh"
#include "cuda/norm/fused_input.cuh"
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/row/array.hpp"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/packed_config.hpp"
#include "ops/rms_norm.hpp"

namespace membound::cuda {

template <class T, Access kAccess, FusedInput kFusedInput, Centring kCentring>
void launch_rms_norm(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                     const RowSplit& split, int device, StreamView stream);

template <class T>
void launch_rms_norm_bulk(const RmsNormProblem& problem, const tuning::BulkConfig& config,
                          const tuning::RmsNormConfig& row, int device, StreamView stream);

template <class T>
void launch_rms_norm_packed(const RmsNormProblem& problem, const tuning::PackedConfig& config,
                            const tuning::RmsNormConfig& row, int device, StreamView stream);

template <class T>
RowAccess<T> access_of(const RmsNormProblem& problem) {
  RowAccess<T> access(problem.rows, problem.cols);
  access.add_affine(problem.weight);
  access.add_affine(problem.bias);
  access.add_rows(problem.x);
  access.add_rows(problem.out);
  access.add_rows(problem.residual);
  access.add_rows(problem.residual_out);
  access.add_rows(problem.gate);
  access.add_statistic(problem.mean.data, problem.mean.layout);
  access.add_statistic(problem.rstd.data, problem.rstd.layout);
  return access;
}

// True if rows of unit stride may go to the kernels with bulk copies, which need an architecture
// with clusters and take no options.
bool may_use_bulk_copies(const RmsNormProblem& problem, const RowSplit& split, int device) {
  return split.extent == 0 && problem.heads <= 1 && problem.is_plain() &&
         max_cluster_size(device) > 1;
}

// The bulk pipeline's configuration for rows of unit stride, by the aligned span of out; blocks is
// 0 if it does not take them.
template <class T>
tuning::BulkConfig bulk_config(const RmsNormProblem& problem, const tuning::RmsNormConfig& row,
                               int device) {
  if (problem.residual.data != nullptr && !same_alignment<T>(problem.out, problem.residual_out)) {
    return {};
  }
  const bool fused_input = problem.gate.data != nullptr || problem.residual.data != nullptr;
  return tuning::bulk_config(problem.rows, row, sizeof(T), problem.gate.data != nullptr,
                             fused_input ? 2 : 1, problem.centred ? 2 : 1, multiprocessors(device),
                             static_cast<int>(max_shared_bytes(device)));
}

// The configuration of narrow rows of unit stride as packed tiles; blocks is 0 if they do not fit.
template <class T>
tuning::PackedConfig packed_config(const RmsNormProblem& problem,
                                   const tuning::RmsNormConfig& row) {
  const auto packed = [&](const auto& rows) {
    return rows.data == nullptr || rows.layout.strides[0] == problem.cols;
  };
  if (!packed(problem.x) || !packed(problem.out) || !packed(problem.gate) ||
      !packed(problem.residual) || !packed(problem.residual_out)) {
    return {};
  }
  const bool gated = problem.gate.data != nullptr;
  return tuning::packed_config(problem.rows, problem.cols, row, sizeof(T), gated,
                               gated || problem.residual.data != nullptr ? 2 : 1);
}

// Launches unaligned rows as packed tiles or through the bulk pipeline; false if neither fits.
template <class T>
bool launch_bulk_copies(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                        const RowSplit& split, int device, StreamView stream) {
  if (!may_use_bulk_copies(problem, split, device)) return false;
  const auto packed = packed_config<T>(problem, config);
  if (packed.blocks > 0) {
    launch_rms_norm_packed<T>(problem, packed, config, device, stream);
    return true;
  }
  const auto bulk = bulk_config<T>(problem, config, device);
  if (bulk.blocks == 0) return false;
  launch_rms_norm_bulk<T>(problem, bulk, tuning::one_item_per_thread(config), device, stream);
  return true;
}

// Launches unaligned rows with 4- or 2-byte vectors.
template <class T>
void launch_narrow_vectors(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                           const RowSplit& split, bool whole_4_bytes, int device,
                           StreamView stream) {
  const auto with = [&]<FusedInput kFusedInput, Centring kCentring>() {
    if constexpr (sizeof(T) < 4) {
      if (!whole_4_bytes) {
        return launch_rms_norm<T, Access::k2Byte, kFusedInput, kCentring>(problem, config, split,
                                                                          device, stream);
      }
    }
    launch_rms_norm<T, Access::k4Byte, kFusedInput, kCentring>(problem, config, split, device,
                                                               stream);
  };
  const auto go = [&]<FusedInput kFusedInput>() {
    problem.centred ? with.template operator()<kFusedInput, Centring::kAlways>()
                    : with.template operator()<kFusedInput, Centring::kNever>();
  };
  if (problem.gate.data != nullptr)
    return with.template operator()<FusedInput::kGate, Centring::kNever>();
  problem.residual.data != nullptr ? go.template operator()<FusedInput::kResidual>()
                                   : go.template operator()<FusedInput::kNone>();
}

// Launches unaligned rows with the fastest kernel for their number; false if none of these fits.
template <class T>
bool launch_unaligned(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                      const RowSplit& split, int device, StreamView stream) {
  const bool whole_4_bytes = is_in_narrow_vectors<T>(problem.x, problem.cols) &&
                             is_in_narrow_vectors<T>(problem.out, problem.cols) &&
                             is_in_narrow_vectors<T>(problem.gate, problem.cols) &&
                             is_in_narrow_vectors<T>(problem.residual, problem.cols) &&
                             is_in_narrow_vectors<T>(problem.residual_out, problem.cols);
  const std::int64_t vectors = tuning::ceil_div(problem.cols, kPack<T>);
  const bool gate = problem.gate.data != nullptr;
  if (!tuning::takes_narrow_vectors(config, problem.rows, vectors, whole_4_bytes, gate)) {
    if (launch_bulk_copies<T>(problem, config, split, device, stream)) return true;
    if (!tuning::uses_narrow_vectors(config, problem.rows, sizeof(T), gate)) return false;
  }
  launch_narrow_vectors<T>(problem, tuning::one_item_per_thread(config), split, whole_4_bytes,
                           device, stream);
  return true;
}

void rms_norm(const RmsNormProblem& problem, StreamView stream) {
  dispatch_floating(problem.x.dtype, "rms_norm", [&]<class T>() {
    const int device = current_device();
    const tuning::RmsNormConfig config =
        tuning::rms_norm_config(problem.rows, problem.cols, sizeof(T), max_cluster_size(device));
    RowAccess<T> asked = access_of<T>(problem);
    if (problem.heads > 1 && config.form != tuning::RowForm::kWarp)
      asked.at_least(Access::kUnaligned);
    const bool unaligned = asked.access() == Access::kUnaligned;
    if constexpr (sizeof(T) < 8) {
      if (unaligned && launch_unaligned<T>(problem, config, asked.split(), device, stream)) return;
    }
    const bool fused_input = problem.gate.data != nullptr || problem.residual.data != nullptr;
    const auto most_shared = static_cast<std::int64_t>(max_shared_bytes(device));
    if ((problem.gate.data != nullptr && unaligned) ||
        tuning::uses_strided_kernel(config, sizeof(T), unaligned, fused_input) ||
        !tuning::has_room_to_stage(config, unaligned, fused_input, most_shared)) {
      asked.at_least(Access::kStrided);
    }
    const Access access = asked.access();
    const RowSplit split = asked.split();
    const auto with = [&]<Access kAccess, FusedInput kFusedInput, Centring kCentring>() {
      tuning::RmsNormConfig shape =
          kAccess == Access::kStrided ? tuning::one_item_per_thread(config)
          : kFusedInput == FusedInput::kGate
              ? tuning::spread_with_gate(config, problem.rows, sizeof(T))
              : tuning::spread_over_threads(
                    config, problem.rows, sizeof(T), kAccess == Access::kUnaligned,
                    kFusedInput == FusedInput::kResidual, kCentring == Centring::kAlways);
      if (kAccess == Access::kAligned && kFusedInput != FusedInput::kGate) {
        const std::int64_t vectors = tuning::ceil_div(problem.cols, kPack<T>);
        shape = tuning::one_warp_per_row(shape, problem.rows, vectors, sizeof(T),
                                         kFusedInput != FusedInput::kNone, problem.centred);
      }
      launch_rms_norm<T, kAccess, kFusedInput, kCentring>(problem, shape, split, device, stream);
    };
    // uses_strided_kernel() sends the other combinations to the strided kernels.
    constexpr bool kCommon = sizeof(T) < 8;
    const auto go = [&]<Access kAccess, Centring kCentring>() {
      if constexpr (kCommon || kAccess == Access::kStrided) {
        if (problem.residual.data != nullptr)
          return with.template operator()<kAccess, FusedInput::kResidual, kCentring>();
      }
      with.template operator()<kAccess, FusedInput::kNone, kCentring>();
    };
    if (problem.gate.data != nullptr) {
      if constexpr (kCommon) {
        if (access == Access::kAligned)
          return with.template operator()<Access::kAligned, FusedInput::kGate, Centring::kNever>();
      }
      with.template operator()<Access::kStrided, FusedInput::kGate, Centring::kNever>();
    } else if (access == Access::kStrided) {
      go.template operator()<Access::kStrided, Centring::kRunTime>();
    } else if (kCommon && access == Access::kUnaligned) {
      if constexpr (kCommon) go.template operator()<Access::kUnaligned, Centring::kRunTime>();
    } else if (problem.centred) {
      go.template operator()<Access::kAligned, Centring::kAlways>();
    } else {
      go.template operator()<Access::kAligned, Centring::kNever>();
    }
  });
}

}  // namespace membound::cuda
