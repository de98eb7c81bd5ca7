// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of qk_norm_rope: a pure function, unit-tested without a GPU.
#include <algorithm>
#include <cstdint>

#include "cuda/rope/rope_config.hpp"

namespace membound::cuda::tuning {

// A row is a few heads of one token that share weight, cos and sin; its lanes hold two vectors of
// each head, or, in the general form, are a warp with one head.
using QkNormRopeConfig = RopeConfig;

// Heads whose loads are on their way, and the most of a thread in the form of vectors: what
// a row costs before its first head is as many instructions as a head (H200, 16384 tokens x 40
// heads x 128 bfloat16: 109 us with four heads, 100 with eight; 98.7 with two ahead, 100 with one,
// float32 169 and 185).
inline constexpr int kQkNormHeadsAhead = 2;
inline constexpr int kQkNormHeads = 8;
inline constexpr int kQkNormRopeThreads = 128;
// Of a multiprocessor at once: a thread has 96 registers.
inline constexpr int kQkNormRopeBlocks = 5;
// The most vectors of a head that the form of vectors takes, two in each lane of a warp.
inline constexpr std::int64_t kQkNormVectors = 64;

// Whether lanes can hold all of a head's vectors in pairs that are half a head apart.
inline bool qk_norm_pairs_vectors(std::int64_t head_dim, int dtype_size) {
  const std::int64_t bytes = head_dim * dtype_size;
  return bytes % 32 == 0 && bytes / 16 <= kQkNormVectors;
}

// The lanes of a head in the form of vectors; a warp for more vectors than that.
inline int qk_norm_lanes(std::int64_t head_dim, int dtype_size) {
  const std::int64_t vectors = std::min((head_dim * dtype_size + 15) / 16, kQkNormVectors);
  int lanes = 1;
  while (2 * lanes < vectors) lanes *= 2;
  return lanes;
}

// Heads of a thread where there are many rows: all of a warp's rows take as long as its longest,
// which with 28 and 4 heads is 40 where 32 do, in rows of eight. What comes before the first head
// costs as much as two.
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

// Blocks of some rows each.
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

// tokens at least 1; the heads of q and of k, of which one may be 0. in_vectors: the form of
// vectors.
inline QkNormRopeConfig qk_norm_rope_config(std::int64_t tokens, std::int64_t q_heads,
                                            std::int64_t k_heads, std::int64_t head_dim,
                                            int dtype_size, bool in_vectors) {
  const int lanes = in_vectors ? qk_norm_lanes(head_dim, dtype_size) : 32;
  const bool few = tokens * (q_heads + k_heads) <= kFewRopeUnits / lanes;
  const int threads = few ? kFewRopeThreads : kQkNormRopeThreads;
  return qk_norm_rows(tokens, q_heads, k_heads, lanes, threads / lanes,
                      few || !in_vectors ? 1 : qk_norm_heads(q_heads, k_heads));
}

// Groups of v's heads, whose rows are like those of the others.
inline std::int64_t qk_norm_value_groups(const QkNormRopeConfig& config, std::int64_t heads) {
  return (heads + config.heads_per_thread - 1) / config.heads_per_thread;
}
// Blocks of their own, so that what a block does is the same for all of its threads.
inline std::int64_t qk_norm_value_blocks(const QkNormRopeConfig& config, std::int64_t tokens,
                                         std::int64_t heads) {
  const std::int64_t rows = tokens * qk_norm_value_groups(config, heads);
  return (rows + config.rows_per_block - 1) / config.rows_per_block;
}

}  // namespace membound::cuda::tuning
