// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/device.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_quant_config.hpp"
#include "cuda/row/array.hpp"
#include "cuda/row/bulk_config.hpp"
#include "ops/rms_norm_quant.hpp"

namespace membound::cuda {

template <class T, Access kAccess>
void launch_rms_norm_quant(const RmsNormQuantProblem& problem, const tuning::RmsNormConfig& config,
                           const RowSplit& split, int device, StreamView stream);

template <class T>
void launch_rms_norm_quant_bulk(const RmsNormQuantProblem& problem,
                                const tuning::BulkConfig& config, const tuning::RmsNormConfig& row,
                                int device, StreamView stream);

// The access that all arrays but the quantised result allow.
template <class T>
RowAccess<T> access_of_numbers(const RmsNormQuantProblem& problem) {
  const RmsNormProblem& norm = problem.norm;
  RowAccess<T> access(norm.rows, norm.cols);
  access.add_affine(norm.weight);
  access.add_rows(norm.x);
  access.add_rows(norm.residual);
  access.add_rows(norm.residual_out);
  access.add_statistic(problem.scale, problem.scale_rows);
  return access;
}
template <class T>
RowAccess<T> access_of(const RmsNormQuantProblem& problem) {
  RowAccess<T> access = access_of_numbers<T>(problem);
  access.add_bytes(problem.out, problem.out_rows, problem.out_col_stride);
  return access;
}

// The bulk pipeline's configuration, by the aligned span of the quantised result; blocks is 0 if it
// does not take the rows. The others are read element by element.
template <class T>
tuning::BulkConfig bulk_config(const RmsNormQuantProblem& problem, int device) {
  const RmsNormProblem& norm = problem.norm;
  const bool plain = norm.is_plain() && norm.heads == 1;
  const bool grouped = problem.static_scale == nullptr && problem.group_size < norm.cols;
  const RowAccess<T> numbers = access_of_numbers<T>(problem);
  if (!plain || grouped || numbers.access() == Access::kStrided || numbers.split().extent != 0 ||
      problem.out_rows.rank > 1 || problem.out_col_stride != 1 || max_cluster_size(device) == 1) {
    return {};
  }
  const tuning::RmsNormConfig row =
      tuning::rms_norm_config(norm.rows, norm.cols, sizeof(T), max_cluster_size(device));
  return tuning::bulk_config(norm.rows, row, sizeof(T), true, norm.residual.data != nullptr ? 2 : 1,
                             1, multiprocessors(device),
                             static_cast<int>(max_shared_bytes(device)));
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
    if (unaligned || (norm.heads > 1 && !lanes) ||
        tuning::uses_strided_kernel(aligned, sizeof(T), unaligned, true) ||
        !tuning::has_room_to_stage(aligned, false, norm.residual.data != nullptr, most_shared)) {
      asked.at_least(Access::kStrided);
    }
    const Access access = asked.access();
    const tuning::RmsNormConfig config = config_of(access);
    if constexpr (sizeof(T) < 8) {
      const auto bulk = unaligned ? bulk_config<T>(problem, device) : tuning::BulkConfig{};
      if (bulk.blocks > 0) {
        return launch_rms_norm_quant_bulk<T>(problem, bulk, tuning::one_item_per_thread(config),
                                             device, stream);
      }
    }
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
