// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Plans as people read them.
#include <string>

#include "cuda/norm/gradient_plan.hpp"
#include "cuda/norm/plan.hpp"

namespace membound::cuda::tuning {

inline std::string to_string(NormKernel kernel) {
  static constexpr const char* kNames[] = {
      "rms_norm_row_kernel, lanes of a warp per row",
      "rms_norm_row_kernel, half of the lanes per row, three vectors each",
      "rms_norm_row_kernel, one warp per row, two items per lane",
      "rms_norm_row_kernel, one warp per row, two items per lane in three vectors",
      "rms_norm_row_kernel, one warp per row, four items per lane in five vectors",
      "rms_norm_row_kernel, one warp per row, four items per lane in six vectors",
      "rms_norm_row_kernel, one block per row",
      "rms_norm_row_kernel, one block of at most 384 threads per row",
      "rms_norm_row_kernel, one block per row, two items per thread",
      "rms_norm_row_kernel, one block per row, two items per thread in three vectors",
      "rms_norm_row_kernel, one block per row, four vectors per thread in shared memory",
      "rms_norm_row_kernel, one block per row, four vectors per thread in registers",
      "rms_norm_row_kernel, one cluster per row, eight vectors per thread",
      "rms_norm_streamed_kernel",
      "rms_norm_streamed_kernel, blocks of 16 warps",
      "rms_norm_narrow_kernel, two rows per thread group",
      "rms_norm_narrow_kernel, two rows per thread group in three vectors",
      "rms_norm_packed_kernel, tiles of narrow rows",
      "rms_norm_packed_kernel, tiles of narrow rows in three vectors",
      "rms_norm_bulk_kernel, two vectors per thread",
      "rms_norm_bulk_kernel, four vectors per thread",
  };
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<int>(NormKernel::kCount));
  return kNames[static_cast<int>(kernel)];
}

inline std::string row_text(const RmsNormConfig& row) {
  std::string text = std::to_string(row.lanes) + " threads, " +
                     std::to_string(row.items_per_thread) +
                     (row.items_per_thread == 1 ? " item" : " items") + " per thread, " +
                     std::to_string(row.vectors_per_item) + " vectors of 16 bytes per item";
  if (row.groups > 1) text += ", " + std::to_string(row.groups) + " groups";
  if (row.segments_per_group > 1)
    text += " of " + std::to_string(row.segments_per_group) + " segments";
  return text;
}

inline std::string launch_text(std::int64_t blocks, int threads, int cluster, int shared_bytes,
                               bool overlap_launch) {
  return std::to_string(blocks) + (blocks == 1 ? " block of " : " blocks of ") +
         std::to_string(threads) + " threads" +
         (cluster > 1 ? ", clusters of " + std::to_string(cluster) : "") + ", " +
         std::to_string(shared_bytes) + " bytes of dynamic shared memory" +
         (overlap_launch ? ", programmatic dependent launch" : "");
}

inline std::string to_string(const NormVariant& of) {
  static constexpr const char* kAccess[] = {"16-byte aligned rows", "unaligned rows",
                                            "strided rows"};
  static constexpr const char* kFused[] = {"", ", a residual", ", a gate"};
  static constexpr const char* kCentring[] = {"", ", centred", ", centred or not"};
  return std::string(kAccess[static_cast<int>(of.access)]) +
         kFused[static_cast<int>(of.fused_input)] + kCentring[static_cast<int>(of.centring)] +
         (of.quantised ? ", quantised" : "");
}

inline std::string to_string(const NormPlan& plan) {
  return "kernel: " + to_string(plan.kernel) + "\ncompiled for: " + to_string(plan.variant) +
         "\nlaunch: " +
         launch_text(plan.blocks, plan.row.threads, plan.row.blocks_per_row, plan.shared_bytes,
                     plan.overlap_launch) +
         "\nrow: " + row_text(plan.row);
}

inline std::string to_string(GradientKernel kernel) {
  static constexpr const char* kNames[] = {
      "rms_norm_backward_specialised_kernel, lanes of a warp per row",
      "rms_norm_backward_specialised_kernel, one block per row",
      "rms_norm_backward_specialised_kernel, one block per row, columns in shared memory",
      "rms_norm_backward_specialised_kernel, one cluster per row",
      "rms_norm_backward_streamed_kernel",
      "rms_norm_backward_persistent_kernel, lanes of a warp per row",
      "rms_norm_backward_persistent_kernel, lanes of a warp per row, evenly spaced rows",
      "rms_norm_backward_persistent_kernel, half of the lanes per row",
      "rms_norm_backward_persistent_kernel, half of the lanes per row, evenly spaced rows",
      "rms_norm_backward_persistent_kernel, a quarter of the lanes per row",
      "rms_norm_backward_persistent_kernel, a quarter of the lanes per row, evenly spaced rows",
      "rms_norm_backward_persistent_kernel, one vector per thread, next row in registers",
      "rms_norm_backward_persistent_kernel, two vectors per thread, next row in registers",
      "rms_norm_backward_persistent_kernel, clusters, two vectors per thread, no prefetch",
      "rms_norm_backward_persistent_kernel, one vector per thread, at most 384 threads, staged",
      "rms_norm_backward_persistent_kernel, one vector per thread, staged",
      "rms_norm_backward_persistent_kernel, two vectors per thread, two blocks per SM, staged",
      "rms_norm_backward_persistent_kernel, two vectors per thread, staged",
      "rms_norm_backward_persistent_kernel, four vectors per thread, staged",
      "rms_norm_backward_persistent_kernel, clusters, two vectors per thread, staged",
      "rms_norm_backward_persistent_kernel, clusters of two per SM, two vectors per thread, staged",
      "rms_norm_backward_persistent_kernel, clusters, four vectors per thread, staged",
      "rms_norm_backward_persistent_kernel, clusters, four vectors per thread, 384 threads, staged",
      "rms_norm_backward_bulk_kernel, one vector per thread, at most 384 threads",
      "rms_norm_backward_bulk_kernel, one vector per thread",
      "rms_norm_backward_bulk_kernel, two vectors per thread, two blocks per SM",
      "rms_norm_backward_bulk_kernel, two vectors per thread",
      "rms_norm_backward_bulk_kernel, four vectors per thread, three stages",
      "rms_norm_backward_bulk_kernel, four vectors per thread",
      "rms_norm_backward_bulk_kernel, clusters, two vectors per thread",
      "rms_norm_backward_packed_kernel, tiles of narrow rows",
  };
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == static_cast<int>(GradientKernel::kCount));
  return kNames[static_cast<int>(kernel)];
}

inline std::string to_string(const GradientVariant& of) {
  static constexpr const char* kForms[] = {"no options",          "offset or rounding",
                                           "a second gradient",   "a gate",
                                           "options at run time", "a gate and options at run time"};
  return to_string(NormVariant{of.access, FusedInput::kNone, of.centring}) + ", " +
         kForms[static_cast<int>(of.form)];
}

inline std::string to_string(const GradientPlan& plan) {
  const auto& config = plan.config;
  std::string text =
      "kernel: " + to_string(plan.kernel) + "\ncompiled for: " + to_string(plan.variant) +
      "\nlaunch: " +
      launch_text(plan.blocks, plan.threads, config.blocks_per_row, plan.shared_bytes, true);
  if (config.form == GradientForm::kPersistent) {
    text += "\ncolumn sums: " + std::to_string(config.partial_rows) +
            " rows of partial sums, added up by partial_sums_kernel" +
            (plan.adds_pairs ? "; one block does the work of two" : "");
  } else if (config.column_blocks > 0) {
    text += "\ncolumn sums: " + std::to_string(config.column_blocks) + " of the blocks" +
            (plan.columns_first ? ", launched first" : "");
  }
  return text;
}

}  // namespace membound::cuda::tuning
