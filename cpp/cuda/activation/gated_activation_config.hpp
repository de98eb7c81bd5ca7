// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation: a pure function, unit-tested without a GPU.
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kGateThreads = 256;  // of a block, at most
// Loads of each array that a thread has in flight at once.
inline constexpr int kVectorsPerThread = 2;
inline constexpr int kElementsPerThread = 4;
// Of rows that start anywhere, which take more instructions for a thread and fewer for each unit.
inline constexpr int kUnalignedPerThread = 2;

// Few units, in vectors or elements: one per thread and blocks of 64 threads, so that all
// multiprocessors have some of them (H200, silu of 1 x 4096 bfloat16: 1.9 us, 2.1 with two units
// and 256 threads; 128 x 4096: 2.8 and 3.5; 1024 x 4096: 10.7 and 8.6).
inline constexpr std::int64_t kFewGateUnits = 132 * 1024;
inline constexpr int kFewGateThreads = 64;
// Else (16384 x 4096 bfloat16: 95.1 us, 98.3 with 256 threads).
inline constexpr int kManyGateThreads = 128;

// A block has threads / lanes rows, or a tile of one.
struct GatedActivationConfig {
  int threads;          // of a block
  int per_thread;       // units
  int lanes;            // threads of a row, a power of two
  int tile_units;       // of a row that a block has
  std::uint32_t tiles;  // blocks of a row, where it needs more than one
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

// Rows that start anywhere. Four threads at least: one has at most one of the last four units.
inline GatedActivationConfig unaligned_gate_config(std::int64_t rows, std::int64_t units) {
  const std::int64_t wanted = 4 * kUnalignedPerThread;
  return gated_activation_config(rows, units < wanted ? wanted : units, kUnalignedPerThread);
}

}  // namespace membound::cuda::tuning
