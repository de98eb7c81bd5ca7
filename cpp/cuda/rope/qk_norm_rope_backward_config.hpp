// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of qk_norm_rope_backward: a pure function, unit-tested without a GPU.
#include <cstdint>

#include "cuda/rope/qk_norm_rope_config.hpp"

namespace membound::cuda::tuning {

// A block takes one part of the rows that share a weight, `slots` runs of them at once: the tree of
// dweight, which head_dim and dtype fix. In the general form one warp takes the slots in turn.
struct QkNormRopeBackwardConfig {
  int lanes;  // of a row in the form of vectors
  int slots;
  int together;  // slots that take turns at a run of rows
  int threads;
  bool overlap_launch;

  bool operator==(const QkNormRopeBackwardConfig&) const = default;
};

inline constexpr int kQkNormRopeBackwardThreads = 128;
// Of a multiprocessor at once: a thread has 128 registers.
inline constexpr int kQkNormRopeBackwardBlocks = 4;

// blocks: parts of all arrays and groups.
inline QkNormRopeBackwardConfig qk_norm_rope_backward_config(std::int64_t blocks,
                                                             std::int64_t head_dim, int dtype_size,
                                                             bool in_vectors) {
  QkNormRopeBackwardConfig config{};
  config.lanes = qk_norm_lanes(head_dim, dtype_size);
  config.slots = kQkNormRopeBackwardThreads / config.lanes;
  config.together = 1;  // H200, 16384 tokens x 40 heads of 128: 148 us, all of a warp 156
  config.threads = in_vectors ? kQkNormRopeBackwardThreads : 32;
  config.overlap_launch = blocks <= kRopeOverlapBlocks;
  return config;
}

}  // namespace membound::cuda::tuning
