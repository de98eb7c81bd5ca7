// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of qk_norm_rope_backward: a pure function, unit-tested without a GPU.
#include <cstdint>

#include "cuda/rope/qk_norm_rope_config.hpp"

namespace membound::cuda::tuning {

// A block has one part of the rows that share a weight, split into `slots` runs that it processes
// at once. Parts and slots are the reduction tree of dweight; head_dim and dtype alone determine
// them. In the generic form one warp processes the slots sequentially.
struct QkNormRopeBackwardConfig {
  int lanes;  // threads per row in the form with two vectors per lane
  int slots;
  int together;  // slots that alternate on one run of rows
  int threads;
  bool overlap_launch;

  bool operator==(const QkNormRopeBackwardConfig&) const = default;
};

inline constexpr int kQkNormRopeBackwardThreads = 128;
// Blocks per SM, which gives a thread 128 registers.
inline constexpr int kQkNormRopeBackwardBlocks = 4;

// blocks: parts of all arrays and groups.
inline QkNormRopeBackwardConfig qk_norm_rope_backward_config(std::int64_t blocks,
                                                             std::int64_t head_dim, int dtype_size,
                                                             bool in_vectors) {
  QkNormRopeBackwardConfig config{};
  config.lanes = qk_norm_lanes(head_dim, dtype_size);
  config.slots = kQkNormRopeBackwardThreads / config.lanes;
  config.together = 1;  // with all slots of a warp together: 148 -> 156 us
  config.threads = in_vectors ? kQkNormRopeBackwardThreads : 32;
  config.overlap_launch = blocks <= kRopeOverlapBlocks;
  return config;
}

}  // namespace membound::cuda::tuning
