// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configurations as a failed check prints them.
#include <string>

#include "cuda/norm/plan_text.hpp"
#include "cuda/rope/rope_config.hpp"

namespace membound::cuda::tuning {

inline std::string to_string(const RmsNormConfig& c) {
  static constexpr const char* kForms[] = {"warp", "block", "cluster", "streamed"};
  return std::string(kForms[static_cast<int>(c.form)]) +
         " vectors_per_item=" + std::to_string(c.vectors_per_item) +
         " items_per_thread=" + std::to_string(c.items_per_thread) +
         " threads=" + std::to_string(c.threads) + " lanes=" + std::to_string(c.lanes) +
         " blocks=" + std::to_string(c.blocks_per_row) + " groups=" + std::to_string(c.groups) +
         " segments=" + std::to_string(c.segments_per_group) +
         (c.overlap_launch ? " overlapped" : "");
}

inline std::string to_string(const RopeConfig& c) {
  return "heads=" + std::to_string(c.heads_per_thread) + " lanes=" + std::to_string(c.lanes) +
         " rows=" + std::to_string(c.rows_per_block) + " groups=" + std::to_string(c.groups) +
         " blocks=" + std::to_string(c.blocks) + (c.overlap_launch ? " overlapped" : "");
}

}  // namespace membound::cuda::tuning
