// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rope: a pure function, unit-tested without a GPU.
#include <cstdint>

namespace membound::cuda::tuning {

// A unit is what one thread turns of a head: two vectors of 16 bytes, or two smaller pieces. The
// threads of a row take the units of one head, then of the next few of the same token.
struct RopeConfig {
  int heads_per_thread;  // that share cos and sin
  int lanes;             // threads of a row; each takes units lane, lane + lanes, ...
  int rows_per_block;
  std::int64_t groups;  // rows of a token
  std::int64_t blocks;
  bool overlap_launch;

  int threads() const { return lanes * rows_per_block; }
  bool operator==(const RopeConfig&) const = default;
};

// Heads whose loads are on their way together, and blocks of a multiprocessor at once: a thread has
// 80 registers (H200, 16384 tokens x 40 heads bfloat16: 86.1 us, heads of 64 44.2; with 4 heads and
// 5 blocks 87.6 and 47.6), beside sines 96 (85.1 us, 89.1 with 6 blocks).
inline constexpr int kRopeHeads = 2;
inline constexpr int kRopeBlocks = 6;
inline constexpr int kRopeBlocksWithSines = 5;
// Heads that share cos and sin of a table, and what a thread does before its first load (H200,
// 16384 tokens x 40 heads x 128 bfloat16: 128 us with one, 100 with 2, 86 with 4, 88 with 8).
inline constexpr int kRopeHeadsOfTable = 4;
// Heads that share angles which take longer to make than a head to turn (the same with frequencies:
// 85 us with 8 and the sines of a thread in one piece; sine after sine 131 with 8, 119 with 16).
inline constexpr int kRopeHeadsOfMade = 8;
// The same of pieces, of which a thread has so few that what it does before the first is most of it
// (heads of 100 in pieces of 4 bytes: 115 us with 4 heads, 88 with 8, 89 with 16; of 128 in pieces
// of 2 bytes 211, 153, 139).
inline int rope_heads_of_pieces(int piece_bytes) { return piece_bytes == 2 ? 16 : 8; }
// Of their heads those whose loads are on their way together, by the bytes of a piece, and blocks
// of a multiprocessor: a thread has 80 registers (heads of 72 in pieces of 8 bytes: 59 us; with 64
// and spills 62, with 48 86), beside pieces of 2 bytes 64 (heads of 128: 148 us with eight heads on
// their way, 160 with four and 80 registers).
inline constexpr int kRopePieceBytesAhead = 16;
inline constexpr int kRopePieceBlocks = 6;
inline constexpr int kRopeElementBlocks = 8;
inline constexpr int kRopeThreads = 128;  // a little before 256: 97.7 us and 100 with 2 heads

// Few units: one head per thread and blocks of 64 threads, as parallelism beats shared angles
// (H200, a trial kernel, 64 tokens x 40 heads x 128: 1.78 us overlapped with 64 threads, 2.4 with
// 256; 2.85 to 3.1 with angles shared by 2 to 5 heads).
inline constexpr std::int64_t kFewRopeUnits = 132 * 2048;
inline constexpr int kFewRopeThreads = 64;
// Where launches are so long, overlapping them gains nothing (see tuning/rms_norm.hpp).
inline constexpr std::int64_t kRopeOverlapBlocks = 8192;

// made: angles come from frequencies.
inline int rope_heads_of_vectors(bool made) { return made ? kRopeHeadsOfMade : kRopeHeadsOfTable; }

// tokens and units at least 1; the heads of q and of k, of which one may be 0. shared: heads that
// share an angle.
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
