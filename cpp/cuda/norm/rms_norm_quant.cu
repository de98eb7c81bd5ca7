// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_quant_config.hpp"
#include "cuda/row/array.hpp"
#include "ops/rms_norm_quant.hpp"

namespace membound::cuda {

template <class T, Access kAccess>
void launch_rms_norm_quant(const RmsNormQuantProblem& problem, const tuning::RmsNormConfig& config,
                           const RowSplit& split, int device, StreamView stream);

template <class T>
RowAccess<T> access_of(const RmsNormQuantProblem& problem) {
  const RmsNormProblem& norm = problem.norm;
  RowAccess<T> access(norm.rows, norm.cols);
  access.add_affine(norm.weight);
  access.add_rows(norm.x);
  access.add_rows(norm.residual);
  access.add_rows(norm.residual_out);
  access.add_statistic(problem.scale, problem.scale_rows);
  access.add_bytes(problem.out, problem.out_rows, problem.out_col_stride);
  return access;
}

void rms_norm_quant(const RmsNormQuantProblem& problem, StreamView stream) {
  const RmsNormProblem& norm = problem.norm;
  dispatch_floating(norm.x.dtype, "rms_norm_quant", [&]<class T>() {
    const int device = current_device();
    const auto config_of = [&](Access access) {
      return tuning::rms_norm_quant_config(norm.rows, norm.cols, sizeof(T),
                                           access == Access::kAligned,
                                           norm.residual.data != nullptr, max_cluster_size(device));
    };
    RowAccess<T> asked = access_of<T>(problem);
    const tuning::RmsNormConfig aligned = config_of(Access::kAligned);
    const bool lanes = aligned.form == tuning::RowForm::kWarp && aligned.items_per_thread == 1;
    const bool unaligned = asked.access() != Access::kAligned;
    const auto most_shared = static_cast<std::int64_t>(max_shared_bytes(device));
    if (unaligned || (norm.heads > 1 && !lanes) || tuning::uses_strided_kernel(aligned, true) ||
        !tuning::has_room_to_stage(aligned, norm.residual.data != nullptr, most_shared)) {
      asked.at_least(Access::kStrided);
    }
    const Access access = asked.access();
    const tuning::RmsNormConfig config = config_of(access);
    if constexpr (sizeof(T) < 8) {
      if (access == Access::kAligned) {
        return launch_rms_norm_quant<T, Access::kAligned>(problem, config, asked.split(), device,
                                                          stream);
      }
    }
    launch_rms_norm_quant<T, Access::kStrided>(problem, config, asked.split(), device, stream);
  });
}

}  // namespace membound::cuda
