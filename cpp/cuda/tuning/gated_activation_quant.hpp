// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation_quant: a pure function, unit-tested without a GPU.
#include <cstddef>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kGateQuantThreads = 512;      // of a block, at most
inline constexpr int kGateQuantTileThreads = 128;  // where a block has a part of a row, or several
// Units that a thread asks for before it computes one.
inline constexpr int kQuantUnitsAhead = 2;
// Units of a thread, at most, of rows that are not longer than its block: what it does once for a
// row is worth 1.5 of them (H200, bfloat16, scales of rows: 16384 x 4096 112.6 us, 115.5 with 8;
// 8192 x 14336 225, 206). Fewer where all threads that the GPU has at once would not have so many.
inline constexpr int kQuantUnitsPerThread = 4;
inline constexpr std::int64_t kQuantThreadsAtOnce = 132 * 1024;

// A block has threads / lanes rows, or a tile of one.
struct GatedActivationQuantConfig {
  int threads;
  int lanes;            // threads of a row, a power of two
  int part_units;       // of a row that a block holds at once: its tile, or a part of whole rows
  std::uint32_t tiles;  // blocks of a row
  std::int64_t blocks;
  std::size_t held_bytes;  // shared memory for the results of a part
};

// units: of kWidth neighbours, of a row. group_lanes: threads that share a scale, or 1. whole_rows:
// a row shares one, so that a block needs all of it. unit_bytes: of a unit's results. Two blocks of
// a multiprocessor keep what they hold, so that one loads while the other stores.
inline GatedActivationQuantConfig gated_activation_quant_config(std::int64_t rows,
                                                                std::int64_t units, int group_lanes,
                                                                bool whole_rows,
                                                                std::size_t unit_bytes,
                                                                std::size_t max_shared_bytes) {
  int per_thread = 1;
  while (per_thread < kQuantUnitsPerThread && rows >= 2 * per_thread * kQuantThreadsAtOnce / units)
    per_thread *= 2;
  const int most = whole_rows ? kGateQuantThreads : kGateQuantTileThreads;
  int lanes = group_lanes;
  while (lanes < most && std::int64_t{lanes} * per_thread < units) lanes *= 2;
  const int threads = lanes > kGateQuantTileThreads ? lanes : kGateQuantTileThreads;
  const int rows_per_block = threads / lanes;
  const auto holds = static_cast<int>(max_shared_bytes / 2 / unit_bytes) / rows_per_block;
  int part_units = lanes * per_thread;
  while (part_units > holds) part_units /= 2;
  if (whole_rows && units <= holds) part_units = static_cast<int>(units);
  const std::int64_t tiles = whole_rows ? 1 : (units + part_units - 1) / part_units;
  return {threads,
          lanes,
          part_units,
          static_cast<std::uint32_t>(tiles),
          (rows + rows_per_block - 1) / rows_per_block * tiles,
          static_cast<std::size_t>(rows_per_block) * part_units * unit_bytes};
}

}  // namespace membound::cuda::tuning
