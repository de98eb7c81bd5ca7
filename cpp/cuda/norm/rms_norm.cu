// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

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
         problem.gate.data == nullptr && max_cluster_size(device) > 1;
}

// The bulk pipeline's configuration for rows of unit stride, by the aligned span of out; blocks is
// 0 if it does not take them.
template <class T>
tuning::BulkConfig bulk_config(const RmsNormProblem& problem, const tuning::RmsNormConfig& row,
                               int device) {
  const bool adds = problem.residual.data != nullptr;
  if (adds && !same_alignment<T>(problem.out, problem.residual_out)) return {};
  return tuning::bulk_config(problem.rows, row, sizeof(T), adds ? 2 : 1, problem.centred ? 2 : 1,
                             multiprocessors(device), static_cast<int>(max_shared_bytes(device)));
}

// The configuration of narrow rows of unit stride as packed tiles; blocks is 0 if they do not fit.
template <class T>
tuning::PackedConfig packed_config(const RmsNormProblem& problem,
                                   const tuning::RmsNormConfig& row) {
  const auto packed = [&](const auto& rows) {
    return rows.data == nullptr || rows.layout.strides[0] == problem.cols;
  };
  if (!packed(problem.x) || !packed(problem.out) || !packed(problem.residual) ||
      !packed(problem.residual_out)) {
    return {};
  }
  return tuning::packed_config(problem.rows, problem.cols, row, sizeof(T),
                               problem.residual.data != nullptr ? 2 : 1);
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

// Launches rows that are not aligned, centred or not at run time.
template <class T, Access kAccess>
void launch_one_item_per_thread(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                                const RowSplit& split, int device, StreamView stream) {
  const auto with = [&]<FusedInput kFusedInput, Centring kCentring>() {
    launch_rms_norm<T, kAccess, kFusedInput, kCentring>(
        problem, tuning::one_item_per_thread(config), split, device, stream);
  };
  if (problem.gate.data != nullptr) {
    with.template operator()<FusedInput::kGate, Centring::kNever>();
  } else if (problem.residual.data != nullptr) {
    with.template operator()<FusedInput::kResidual, Centring::kRunTime>();
  } else {
    with.template operator()<FusedInput::kNone, Centring::kRunTime>();
  }
}

// Launches unaligned rows by narrow vectors or bulk copies; false if neither takes them.
template <class T>
bool launch_unaligned(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                      const RowSplit& split, int device, StreamView stream) {
  int width = 8;
  const auto narrow = [&](const auto& rows) {
    width = std::min(width, narrow_width<T>(rows, problem.cols));
  };
  narrow(problem.x);
  narrow(problem.out);
  narrow(problem.gate);
  narrow(problem.residual);
  narrow(problem.residual_out);
  const std::int64_t vectors = tuning::ceil_div(problem.cols, kPack<T>);
  if (!tuning::takes_narrow_vectors(config, problem.rows, vectors, width) &&
      launch_bulk_copies<T>(problem, config, split, device, stream)) {
    return true;
  }
  if (config.vectors_per_item != 2) return false;
  launch_one_item_per_thread<T, Access::kUnaligned>(problem, config, split, device, stream);
  return true;
}

// Launches aligned rows.
template <class T>
void launch_aligned(const RmsNormProblem& problem, const tuning::RmsNormConfig& config,
                    const RowSplit& split, int device, StreamView stream) {
  const auto with = [&]<FusedInput kFusedInput, Centring kCentring>() {
    constexpr bool kAdds = kFusedInput == FusedInput::kResidual;
    const std::int64_t vectors = tuning::ceil_div(problem.cols, kPack<T>);
    const tuning::RmsNormConfig shape =
        kFusedInput == FusedInput::kGate
            ? tuning::spread_with_gate(config, problem.rows, sizeof(T))
            : tuning::one_warp_per_row(
                  tuning::spread_over_threads(config, problem.rows, sizeof(T), kAdds,
                                              kCentring == Centring::kAlways),
                  problem.rows, vectors, sizeof(T), kAdds, problem.centred);
    launch_rms_norm<T, Access::kAligned, kFusedInput, kCentring>(problem, shape, split, device,
                                                                 stream);
  };
  const auto go = [&]<Centring kCentring>() {
    problem.residual.data != nullptr ? with.template operator()<FusedInput::kResidual, kCentring>()
                                     : with.template operator()<FusedInput::kNone, kCentring>();
  };
  if (problem.gate.data != nullptr) {
    with.template operator()<FusedInput::kGate, Centring::kNever>();
  } else {
    problem.centred ? go.template operator()<Centring::kAlways>()
                    : go.template operator()<Centring::kNever>();
  }
}

void rms_norm(const RmsNormProblem& problem, StreamView stream) {
  dispatch_floating(problem.x.dtype, "rms_norm", [&]<class T>() {
    const int device = current_device();
    const tuning::RmsNormConfig config =
        tuning::rms_norm_config(problem.rows, problem.cols, sizeof(T), max_cluster_size(device));
    RowAccess<T> asked = access_of<T>(problem);
    if (problem.heads > 1 && config.form != tuning::RowForm::kWarp)
      asked.at_least(Access::kUnaligned);
    if constexpr (sizeof(T) < 8) {  // float64 has strided kernels only
      if (asked.access() == Access::kUnaligned &&
          launch_unaligned<T>(problem, config, asked.split(), device, stream)) {
        return;
      }
      const bool fused_input = problem.gate.data != nullptr || problem.residual.data != nullptr;
      const auto most_shared = static_cast<std::int64_t>(max_shared_bytes(device));
      if (asked.access() == Access::kAligned && !tuning::uses_strided_kernel(config, fused_input) &&
          tuning::has_room_to_stage(config, fused_input, most_shared)) {
        return launch_aligned<T>(problem, config, asked.split(), device, stream);
      }
    }
    asked.at_least(Access::kStrided);
    launch_one_item_per_thread<T, Access::kStrided>(problem, config, asked.split(), device, stream);
  });
}

}  // namespace membound::cuda
