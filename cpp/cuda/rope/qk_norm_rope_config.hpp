// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of qk_norm_rope: a pure function, unit-tested without a GPU.
#include <algorithm>
#include <cstdint>

#include "cuda/rope/rope_config.hpp"

namespace membound::cuda::tuning {

// A row is a few heads of one token that share weight, cos and sin. Its lanes hold two vectors of
// each head; in the generic form, a row is a warp with one head.
using QkNormRopeConfig = RopeConfig;

// Heads in flight, and heads per thread at most, in the form with two vectors per lane: the
// instructions before the first head of a row cost as much as one head (bfloat16, 40 heads of 128,
// 16384 tokens: 109 us with four heads per thread, 100 with eight).
inline constexpr int kQkNormHeadsInFlight = 2;
inline constexpr int kQkNormHeads = 8;
inline constexpr int kQkNormRopeThreads = 128;
// Blocks per SM, which gives a thread 96 registers.
inline constexpr int kQkNormRopeBlocks = 5;
// Most vectors of a head in the form with two vectors per lane of a warp.
inline constexpr std::int64_t kQkNormVectors = 64;

// True if lanes can hold the head as pairs of vectors that are half a head apart.
inline bool qk_norm_pairs_vectors(std::int64_t head_dim, int dtype_size) {
  const std::int64_t bytes = head_dim * dtype_size;
  return bytes % 32 == 0 && bytes / 16 <= kQkNormVectors;
}

// Lanes of a head with two vectors per lane; a whole warp for more vectors than that.
inline int qk_norm_lanes(std::int64_t head_dim, int dtype_size) {
  const std::int64_t vectors = std::min((head_dim * dtype_size + 15) / 16, kQkNormVectors);
  int lanes = 1;
  while (2 * lanes < vectors) lanes *= 2;
  return lanes;
}

// Heads per thread for many rows. All rows of a warp take as long as its longest: with 28 and 4
// heads and eight per row, that is 40 heads' time for 32 heads. The setup before the first head
// costs as much as two heads.
inline int qk_norm_heads(std::int64_t q_heads, std::int64_t k_heads) {
  constexpr std::int64_t kBefore = 2;
  const auto cost = [&](std::int64_t each) {
    return ((q_heads + each - 1) / each + (k_heads + each - 1) / each) * (each + kBefore);
  };
  int best = kQkNormHeads;
  for (int each = kQkNormHeads - 1; each > 1; --each) {
    if (cost(each) < cost(best)) best = each;
  }
  return best;
}

// Launch configuration for blocks of rows_per_block rows.
inline QkNormRopeConfig qk_norm_rows(std::int64_t tokens, std::int64_t q_heads,
                                     std::int64_t k_heads, int lanes, int rows_per_block,
                                     int heads_per_thread) {
  QkNormRopeConfig config{};
  config.lanes = lanes;
  config.rows_per_block = rows_per_block;
  config.heads_per_thread = heads_per_thread;
  const auto groups = [&](std::int64_t heads) {
    return (heads + heads_per_thread - 1) / heads_per_thread;
  };
  config.groups = groups(q_heads) + groups(k_heads);
  const std::int64_t rows = tokens * config.groups;
  config.blocks = (rows + rows_per_block - 1) / rows_per_block;
  config.overlap_launch = config.blocks <= kRopeOverlapBlocks;
  return config;
}

// tokens >= 1; the number of heads of either q or k may be 0. in_vectors: two vectors per lane
// instead of the generic form.
inline QkNormRopeConfig qk_norm_rope_config(std::int64_t tokens, std::int64_t q_heads,
                                            std::int64_t k_heads, std::int64_t head_dim,
                                            int dtype_size, bool in_vectors) {
  const int lanes = in_vectors ? qk_norm_lanes(head_dim, dtype_size) : 32;
  const bool few = tokens * (q_heads + k_heads) <= kFewRopeUnits / lanes;
  const int threads = few ? kFewRopeThreads : kQkNormRopeThreads;
  return qk_norm_rows(tokens, q_heads, k_heads, lanes, threads / lanes,
                      few || !in_vectors ? 1 : qk_norm_heads(q_heads, k_heads));
}

// Groups of v's heads; their rows are like those of q and k.
inline std::int64_t qk_norm_value_groups(const QkNormRopeConfig& config, std::int64_t heads) {
  return (heads + config.heads_per_thread - 1) / config.heads_per_thread;
}
// v has blocks of its own, so that all threads of a block do the same.
inline std::int64_t qk_norm_value_blocks(const QkNormRopeConfig& config, std::int64_t tokens,
                                         std::int64_t heads) {
  const std::int64_t rows = tokens * qk_norm_value_groups(config, heads);
  return (rows + config.rows_per_block - 1) / config.rows_per_block;
}

}  // namespace membound::cuda::tuning
