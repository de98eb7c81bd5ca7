// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation: a pure function, unit-tested without a GPU.
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kGateThreads = 256;  // of a block, at most
// Loads of each array that a thread has in flight.
inline constexpr int kVectorsPerThread = 2;
inline constexpr int kElementsPerThread = 4;
// Unaligned rows cost more instructions per thread, but fewer per unit.
inline constexpr int kUnalignedPerThread = 2;

// Up to this many units (vectors or elements), a thread has one unit and blocks have 64 threads, so
// that every SM gets work (silu bfloat16 128 x 4096: 3.5 -> 2.8 us).
inline constexpr std::int64_t kFewGateUnits = 132 * 1024;
inline constexpr int kFewGateThreads = 64;
// Threads of a block otherwise: 128 beat 256 (bfloat16 16384 x 4096: 98.3 -> 95.1 us).
inline constexpr int kManyGateThreads = 128;

// A block has threads / lanes rows, or a tile of one row.
struct GatedActivationConfig {
  int threads;          // per block
  int per_thread;       // units per thread
  int lanes;            // threads per row, a power of two
  int tile_units;       // units of a row per block
  std::uint32_t tiles;  // blocks per row, if it needs more than one
  std::int64_t blocks;
};

// units: vectors or elements of a row.
inline GatedActivationConfig tile_config(std::int64_t rows, std::int64_t units, int per_thread,
                                         int threads) {
  const std::int64_t wanted = (units + per_thread - 1) / per_thread;
  int lanes = 1;
  while (lanes < threads && lanes < wanted) lanes *= 2;
  const int tile_units = lanes * per_thread;
  const std::int64_t tiles = (units + tile_units - 1) / tile_units;
  const std::int64_t rows_per_block = threads / lanes;
  return {threads,
          per_thread,
          lanes,
          tile_units,
          static_cast<std::uint32_t>(tiles),
          (rows + rows_per_block - 1) / rows_per_block * tiles};
}

inline GatedActivationConfig gated_activation_config(std::int64_t rows, std::int64_t units,
                                                     int per_thread) {
  const bool few = rows <= kFewGateUnits / units;
  return few ? tile_config(rows, units, 1, kFewGateThreads)
             : tile_config(rows, units, per_thread, kManyGateThreads);
}

// For unaligned rows. At least four threads per row, so that a thread has at most one of the last
// four units.
inline GatedActivationConfig unaligned_gate_config(std::int64_t rows, std::int64_t units) {
  const std::int64_t wanted = 4 * kUnalignedPerThread;
  return gated_activation_config(rows, units < wanted ? wanted : units, kUnalignedPerThread);
}

}  // namespace membound::cuda::tuning
