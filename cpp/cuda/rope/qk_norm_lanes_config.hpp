// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Assignment of the vectors of heads to lanes of a warp, one per lane: a pure function, unit-tested
// without a GPU.
#include <cstdint>

#include "cuda/rope/qk_norm_rope_config.hpp"

namespace membound::cuda::tuning {

struct WarpHeads {
  int vectors;            // of a head
  int summing;            // vectors of a head in butterfly lanes, as in rms_norm's tree
  int heads;              // of a warp at once
  unsigned behind_magic;  // lane * behind_magic / 2^16: division by the other vectors
};

inline constexpr std::int64_t kWarpVectors = 32;

// True if the lanes of a warp can hold a head with one vector each.
inline bool qk_norm_fits_lanes(std::int64_t head_dim, int dtype_size) {
  return head_dim * dtype_size <= kWarpVectors * 16;
}

inline WarpHeads warp_heads(std::int64_t head_dim, int dtype_size) {
  WarpHeads all{};
  all.vectors = static_cast<int>((head_dim * dtype_size + 15) / 16);
  all.summing = qk_norm_lanes(head_dim, dtype_size);
  all.heads = static_cast<int>(kWarpVectors) / all.vectors;
  const unsigned behind = all.vectors > all.summing ? all.vectors - all.summing : 1;
  all.behind_magic = (65536u + behind - 1) / behind;
  return all;
}

// Launch bounds of the backward kernel: threads per block, at most, and blocks per SM. They give a
// thread 128 registers; with 96 it spills (40 heads of 100 bfloat16, 16384 tokens: 207 -> 298 us).
inline constexpr int kQkNormBackwardLaneThreads = 256;
inline constexpr int kQkNormBackwardLaneBlocks = 2;
inline int qk_norm_backward_lane_threads(int slots, const WarpHeads& all) {
  return 32 * ((slots + all.heads - 1) / all.heads);
}

// Heads that a lane processes at once, to overlap the latency of their sums and rotations, and
// blocks per SM. These bounds give a thread 128 registers; with 96 it spills (heads of 72: 99 ->
// 113 us).
inline constexpr int kQkNormLaneHeads = 2;
inline constexpr int kQkNormLaneBlocks = 4;

// Rows as in the form with two vectors per lane.
inline QkNormRopeConfig qk_norm_lane_config(std::int64_t tokens, std::int64_t q_heads,
                                            std::int64_t k_heads, const WarpHeads& all) {
  const bool few = tokens * (q_heads + k_heads) <= kFewRopeUnits / all.vectors;
  return qk_norm_rows(tokens, q_heads, k_heads, all.vectors, kQkNormRopeThreads / 32 * all.heads,
                      few ? 1 : qk_norm_heads(q_heads, k_heads));
}

}  // namespace membound::cuda::tuning
