// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation: a pure function, unit-tested without a GPU.
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kGateThreads = 256;
// Loads of each array that a thread has in flight at once.
inline constexpr int kChunksPerThread = 2;
inline constexpr int kElementsPerThread = 4;

// A block has kGateThreads / lanes rows, or a tile of one.
struct GatedActivationConfig {
  int lanes;            // threads of a row, a power of two
  int tile_units;       // of a row that a block has
  std::uint32_t tiles;  // blocks of a row, where it needs more than one
  std::int64_t blocks;
};

// units: chunks or elements of a row.
inline GatedActivationConfig gated_activation_config(std::int64_t rows, std::int64_t units,
                                                     int per_thread) {
  const std::int64_t wanted = (units + per_thread - 1) / per_thread;
  int lanes = 1;
  while (lanes < kGateThreads && lanes < wanted) lanes *= 2;
  const int tile_units = lanes * per_thread;
  const std::int64_t tiles = (units + tile_units - 1) / tile_units;
  const std::int64_t rows_per_block = kGateThreads / lanes;
  return {lanes, tile_units, static_cast<std::uint32_t>(tiles),
          (rows + rows_per_block - 1) / rows_per_block * tiles};
}

}  // namespace membound::cuda::tuning
