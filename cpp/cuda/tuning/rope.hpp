// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rope: a pure function, unit-tested without a GPU.
#include <algorithm>
#include <cstdint>
#include <string>

namespace membound::cuda::tuning {

// A unit is what one thread turns of a head: two chunks of 16 bytes, or in the general form one
// pair. The threads of a row take the units of one head, then of the next few of the same token.
struct RopeConfig {
  int heads_per_thread;  // whose loads are on their way together, and that share cos and sin
  int lanes;             // threads of a row; each takes units lane, lane + lanes, ...
  int rows_per_block;
  std::int64_t groups;  // rows of a token
  std::int64_t blocks;
  bool overlap_launch;

  int threads() const { return lanes * rows_per_block; }
  bool operator==(const RopeConfig&) const = default;
};

inline std::string to_string(const RopeConfig& c) {
  return "heads=" + std::to_string(c.heads_per_thread) + " lanes=" + std::to_string(c.lanes) +
         " rows=" + std::to_string(c.rows_per_block) + " groups=" + std::to_string(c.groups) +
         " blocks=" + std::to_string(c.blocks) + (c.overlap_launch ? " overlapped" : "");
}

// The most heads of a thread: 64 bytes of each of 768 threads on their way fill the memory's queue.
inline constexpr int kRopeHeads = 2;
inline constexpr int kRopeThreads = 256;

// Few units: one head per thread and blocks of 64 threads, as parallelism beats shared angles
// (H200, a trial kernel, 64 tokens x 40 heads x 128: 1.78 us overlapped with 64 threads, 2.4 with
// 256; 2.85 to 3.1 with angles shared by 2 to 5 heads).
inline constexpr std::int64_t kFewRopeUnits = 132 * 2048;
inline constexpr int kFewRopeThreads = 64;
// Where launches are so long, overlapping them gains nothing (see tuning/rms_norm.hpp).
inline constexpr std::int64_t kRopeOverlapBlocks = 8192;

// tokens, heads (of q and k together) and units at least 1.
inline RopeConfig rope_config(std::int64_t tokens, std::int64_t heads, std::int64_t units) {
  RopeConfig config{};
  const bool few = tokens * heads <= kFewRopeUnits / units;
  config.heads_per_thread = few ? 1 : static_cast<int>(std::min<std::int64_t>(kRopeHeads, heads));
  const int threads = few ? kFewRopeThreads : kRopeThreads;
  config.lanes = static_cast<int>(std::min<std::int64_t>(units, threads));
  config.rows_per_block = threads / config.lanes;
  config.groups = (heads + config.heads_per_thread - 1) / config.heads_per_thread;
  const std::int64_t rows = tokens * config.groups;
  config.blocks = (rows + config.rows_per_block - 1) / config.rows_per_block;
  config.overlap_launch = config.blocks <= kRopeOverlapBlocks;
  return config;
}

}  // namespace membound::cuda::tuning
