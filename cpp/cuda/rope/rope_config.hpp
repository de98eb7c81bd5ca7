// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rope: a pure function, unit-tested without a GPU.
#include <cstdint>

namespace membound::cuda::tuning {

// A unit is what one thread rotates of a head: two 16-byte vectors, or two narrower ones. The
// threads of a row take the units of one head, then of the next few heads of the same token.
struct RopeConfig {
  int heads_per_thread;  // heads that share cos and sin
  int lanes;             // threads of a row; each takes units lane, lane + lanes, ...
  int rows_per_block;
  std::int64_t groups;  // rows of a token
  std::int64_t blocks;
  bool overlap_launch;

  int threads() const { return lanes * rows_per_block; }
  bool operator==(const RopeConfig&) const = default;
};

// Heads in flight together and blocks per SM, which give a thread 80 registers, or 96 if it
// computes sines (bfloat16, 40 heads of 64, 16384 tokens: 44.2 us, 47.6 with 4 heads and 5 blocks).
inline constexpr int kRopeHeads = 2;
inline constexpr int kRopeBlocks = 6;
inline constexpr int kRopeBlocksWithSines = 5;
// Heads that share the cos and sin of a table and a thread's setup (bfloat16, 40 heads of 128,
// 16384 tokens: 128 us with one head, 86 with four).
inline constexpr int kRopeHeadsOfTable = 4;
// Heads that share computed angles, which take longer than rotating a head (same shape: 85 us with
// eight heads and unrolled sines).
inline constexpr int kRopeHeadsOfComputed = 8;
// The same for narrow vectors, of which a thread has so few that setup dominates (heads of 100 in
// 4-byte vectors: 115 us with 4 heads, 88 with 8).
inline int rope_heads_of_narrow_vectors(int piece_bytes) { return piece_bytes == 2 ? 16 : 8; }
// Narrow vectors: bytes in flight per thread and blocks per SM. These give a thread 80 registers,
// or 64 for 2-byte elements; with fewer it spills (heads of 72 in 8-byte vectors: 59 us, 86 with 48
// registers).
inline constexpr int kRopeNarrowBytesInFlight = 16;
inline constexpr int kRopeNarrowBlocks = 6;
inline constexpr int kRopeElementBlocks = 8;
inline constexpr int kRopeThreads = 128;  // slightly better than 256: 97.7 us, 100 with 2 heads

// Few units: one head per thread and blocks of 64 threads, as parallelism beats shared angles (64
// tokens, 40 heads of 128: 2.4 -> 1.78 us).
inline constexpr std::int64_t kFewRopeUnits = 132 * 2048;
inline constexpr int kFewRopeThreads = 64;
// Longer launches gain nothing from overlapping with the previous kernel.
inline constexpr std::int64_t kRopeOverlapBlocks = 8192;

// made: angles are computed from frequencies.
inline int rope_heads_of_vectors(bool made) {
  return made ? kRopeHeadsOfComputed : kRopeHeadsOfTable;
}

// tokens and units >= 1; the number of heads of either q or k may be 0. shared: heads that share an
// angle.
inline RopeConfig rope_config(std::int64_t tokens, std::int64_t q_heads, std::int64_t k_heads,
                              std::int64_t units, int shared) {
  RopeConfig config{};
  const bool few = tokens * (q_heads + k_heads) <= kFewRopeUnits / units;
  config.heads_per_thread = few ? 1 : shared;
  const int threads = few ? kFewRopeThreads : kRopeThreads;
  config.lanes = static_cast<int>(units < threads ? units : threads);
  config.rows_per_block = threads / config.lanes;
  const auto groups = [&](std::int64_t heads) {
    return (heads + config.heads_per_thread - 1) / config.heads_per_thread;
  };
  config.groups = groups(q_heads) + groups(k_heads);
  const std::int64_t rows = tokens * config.groups;
  config.blocks = (rows + config.rows_per_block - 1) / config.rows_per_block;
  config.overlap_launch = config.blocks <= kRopeOverlapBlocks;
  return config;
}

}  // namespace membound::cuda::tuning
