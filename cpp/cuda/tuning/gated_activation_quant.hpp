// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation_quant: a pure function, unit-tested without a GPU.
#include <cstddef>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kGateQuantThreads = 512;      // of a block, at most
inline constexpr int kGateQuantTileThreads = 256;  // where a block has a part of a row

// A block has threads / lanes rows, or a tile of one.
struct GatedActivationQuantConfig {
  int threads;
  int lanes;                // threads of a row, a power of two
  std::int64_t tile_units;  // of a row that a block has
  std::uint32_t tiles;      // blocks of a row
  std::int64_t blocks;
  std::size_t held_bytes;  // shared memory for results of whole rows; 0: they are computed twice
};

// units: of kWidth neighbours, of a row. per_thread: loaded at once. group_lanes: threads that
// share a scale, or 1. whole_rows: a row shares one, so that a block needs all of it. unit_bytes:
// of a unit's results. Two blocks of a multiprocessor keep what they hold, so that one loads while
// the other stores.
inline GatedActivationQuantConfig gated_activation_quant_config(std::int64_t rows,
                                                                std::int64_t units, int per_thread,
                                                                int group_lanes, bool whole_rows,
                                                                std::size_t unit_bytes,
                                                                std::size_t max_shared_bytes) {
  const int most = whole_rows ? kGateQuantThreads : kGateQuantTileThreads;
  int lanes = group_lanes;
  while (lanes < most && std::int64_t{lanes} * per_thread < units) lanes *= 2;
  const int threads = lanes > kGateQuantTileThreads ? lanes : kGateQuantTileThreads;
  const int rows_per_block = threads / lanes;
  const std::int64_t tile_units = whole_rows ? units : std::int64_t{lanes} * per_thread;
  const std::int64_t tiles = (units + tile_units - 1) / tile_units;
  const std::size_t bytes = static_cast<std::size_t>(rows_per_block * units) * unit_bytes;
  return {threads,
          lanes,
          tile_units,
          static_cast<std::uint32_t>(tiles),
          (rows + rows_per_block - 1) / rows_per_block * tiles,
          whole_rows && bytes <= max_shared_bytes / 2 ? bytes : 0};
}

}  // namespace membound::cuda::tuning
