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
inline constexpr std::size_t kSharedOfBlock = 2048;  // beside what it holds, at most

// A block has threads / lanes rows, or a tile of one.
struct GatedActivationQuantConfig {
  int threads;
  int lanes;            // threads of a row, a power of two
  int part_units;       // of a row that a block holds at once: its tile, or a part of whole rows
  std::uint32_t tiles;  // blocks of a row
  std::int64_t blocks;
  std::size_t held_bytes;  // shared memory for the results of a part
  int per_thread;          // units, where they wait in registers
};

// Units whose results a block keeps there.
inline int quant_units_held(std::size_t unit_bytes, std::size_t max_shared_bytes) {
  return static_cast<int>(max_shared_bytes / 2 / unit_bytes);
}

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
  const int holds = quant_units_held(unit_bytes, max_shared_bytes) / rows_per_block;
  int part_units = lanes * per_thread;
  while (part_units > holds) part_units /= 2;
  if (whole_rows && units <= holds) part_units = static_cast<int>(units);
  const std::int64_t tiles = whole_rows ? 1 : (units + part_units - 1) / part_units;
  return {threads,
          lanes,
          part_units,
          static_cast<std::uint32_t>(tiles),
          (rows + rows_per_block - 1) / rows_per_block * tiles,
          static_cast<std::size_t>(rows_per_block) * part_units * unit_bytes,
          per_thread};
}

// Aligned rows, or tiles of those that do not share one scale, whose results wait in registers
// (H100, bfloat16, us, through shared memory and so: static scales 1 x 4096 2.2 and 1.6, 1024 x
// 4096 10.2 and 9.3, 16384 x 4096 118.5 and 109.8, 524288 x 128 122.9 and 109.8; scales of rows 1 x
// 4096 2.6 and 2.0, 16384 x 4096 120.9 and 113.2, 524288 x 128 130.9 and 113.0; of 128 columns
// 16384 x 4096 127.7 and 121.8, 65536 x 512 75.0 and 61.5).
inline constexpr int kQuantTileUnits = 2;  // of a thread, at most
inline constexpr int kQuantTileThreads = 1024;
// Few units have one for each thread, in small blocks: many of those would wait to be started
// (H100, a static scale, 256 x 4096 bfloat16, blocks of 64, 128 and 256: 4.77, 3.72 and 3.43 us).
inline constexpr std::int64_t kUnitsOfSmallTiles = 64 * 1024;
inline constexpr int kSmallQuantTileThreads = 64;
inline constexpr int kFewQuantTileThreads = 256;

// Of a row that shares one scale a block has all, or a cluster of up to max_cluster blocks: in no
// blocks where those have no room. tiles are then the blocks of the cluster.
inline constexpr std::int64_t kManyQuantUnits = 2048;  // of a row; wider ones have clusters
inline constexpr int kWideQuantThreads = 512;          // of a block of one, at most
// And few rows of so many units, whose arithmetic takes one multiprocessor long (H100, bfloat16, us
// in one block and in up to eight: 1 x 8192 2.66 and 2.08, 16 x 8192 2.72 and 2.76, 1 x 14336 3.24
// and 2.10, 64 x 14336 4.50 and 4.13, but with eight 5.32; 16 x 4096 2.28 and 2.55).
inline constexpr std::int64_t kFewRowsUnits = 1024;
inline constexpr int kFewQuantBlocks = 132;
inline constexpr int kFewQuantUnits = 256;  // of a block
inline constexpr int kFewQuantCluster = 8;

inline int quant_cluster(std::int64_t rows, std::int64_t units, int max_cluster) {
  int cluster = 1;
  const int most = max_cluster < kFewQuantCluster ? max_cluster : kFewQuantCluster;
  while (units >= kFewRowsUnits && 2 * cluster <= most && rows * 2 * cluster <= kFewQuantBlocks &&
         units > std::int64_t{kFewQuantUnits} * cluster) {
    cluster *= 2;
  }
  constexpr std::int64_t kOfBlock = std::int64_t{kWideQuantThreads} * kQuantTileUnits;
  while (units > kManyQuantUnits && units > kOfBlock * cluster) cluster *= 2;
  return cluster;
}

inline GatedActivationQuantConfig quant_tile_config(std::int64_t rows, std::int64_t units,
                                                    int group_lanes, bool whole_rows,
                                                    int max_cluster) {
  const bool few = rows <= kQuantThreadsAtOnce / units;
  // What was measured has one scale for all.
  const bool small = whole_rows || group_lanes > 1 || rows * units <= kUnitsOfSmallTiles;
  const int least = !few    ? kGateQuantTileThreads
                    : small ? kSmallQuantTileThreads
                            : kFewQuantTileThreads;
  const int cluster = whole_rows ? quant_cluster(rows, units, max_cluster) : 1;
  const std::int64_t part = (units + cluster - 1) / cluster;
  const int per_thread = few && (!whole_rows || part <= kQuantTileThreads) ? 1 : kQuantTileUnits;
  int lanes = group_lanes;
  while (lanes < least && std::int64_t{lanes} * per_thread < part) lanes *= 2;
  if (whole_rows && std::int64_t{lanes} * per_thread < part) {
    if (cluster > max_cluster) return {};
    lanes = static_cast<int>((part + 32 * per_thread - 1) / (32 * per_thread)) * 32;
  }
  const int threads = lanes > least ? lanes : least;
  const int part_units = lanes * per_thread, rows_per_block = threads / lanes;
  const std::int64_t tiles = whole_rows ? cluster : (units + part_units - 1) / part_units;
  return {threads,
          lanes,
          part_units,
          static_cast<std::uint32_t>(tiles),
          (rows + rows_per_block - 1) / rows_per_block * tiles,
          0,
          per_thread};
}

// Whether blocks of several rows at once leave few of a multiprocessor's threads without one;
// others stay, if rows are many (H100, bfloat16, us, staying and not: 8192 x 5120 78.0 and 75.4, x
// 5632 84.9 and 93.3, x 8192 119.1 and 119.2, x 11008 159 and 201, 128 x 4096 3.9 and 3.2, 64 x
// 14336 5.4 and 4.7, 512 x 11008 14.7 and 16.6).
inline bool fills_threads(const GatedActivationQuantConfig& config) {
  const int together = config.blocks > 0 ? kQuantTileThreads / config.threads : 0;
  return together > 1 && 16 * together * config.threads >= 15 * kQuantTileThreads;
}

// Rows that share one scale each by blocks that stay. A thread has two units, or beside 16 bits
// three, where they leave few threads without and what a thread does for each row weighs more
// (H200, bfloat16, us with a block to a row, two and three: 8192 x 5632 85.9, 68.5 and 63.9, 8192 x
// 14336 216, 151 and 158). Rows that start anywhere touch one unit more than they fill: they have
// three where two take so many threads that a multiprocessor has one block (H100, bfloat16, two and
// three: 8192 x 8191 138 and 128, 16384 x 4097 132 and 139, float32 220 and 240).
inline constexpr std::int64_t kThreeUnitsOf = 768;  // units of a row, at most
// Units of a row that starts anywhere, at least: narrower ones leave most of a warp without (H100,
// bfloat16, before and so: 262144 x 250 301 and 233, 400000 x 127 247 and 356).
inline constexpr std::int64_t kFewestUnalignedUnits = 24;
inline constexpr int kQuantRowSlots = 4;  // rows that wait for a block, at most
// Chunks of shared memory for gate, as for up, that a row which starts anywhere takes beside one
// for each unit.
inline constexpr int kVectorsBesidesUnits = 3;
// Threads of a multiprocessor whose registers have their results.
constexpr int quant_row_threads(int units_of_thread) { return units_of_thread == 3 ? 768 : 1024; }

struct GatedActivationQuantRowsConfig {
  std::int64_t blocks;  // 0: rows do not go this way
  int threads;
  int units_of_thread;
  int slots;
  std::size_t shared_bytes;
};

inline GatedActivationQuantRowsConfig gated_activation_quant_rows_config(
    std::int64_t rows, std::int64_t units, bool aligned, int dtype_size,
    std::size_t max_shared_bytes, int multiprocessors) {
  if (units > (aligned ? kManyQuantUnits : 3 * quant_row_threads(3))) return {};
  if (!aligned && units < kFewestUnalignedUnits) return {};
  const auto warps_of = [&](int of_thread) {
    return static_cast<int>((units + of_thread * 32 - 1) / (of_thread * 32));
  };
  const auto together_of = [&](int of_thread) {
    return quant_row_threads(of_thread) / 32 / warps_of(of_thread);
  };
  const bool three =
      aligned ? dtype_size == 2 && units <= kThreeUnitsOf && 10 * units >= 9 * 3 * 32 * warps_of(3)
              : together_of(2) < 2 && together_of(3) > together_of(2);
  const int units_of_thread = three ? 3 : 2;
  const int warps = warps_of(units_of_thread), together = together_of(units_of_thread);
  const std::int64_t places = 2 * (units + (aligned ? 0 : kVectorsBesidesUnits));
  const auto row_bytes = static_cast<std::size_t>(places) * 16;
  int slots = kQuantRowSlots;
  while (slots > 1 && together * (slots * row_bytes + kSharedOfBlock) > max_shared_bytes) --slots;
  const std::int64_t resident = std::int64_t{together} * multiprocessors;
  if (slots < 2) return {};
  return {rows < resident ? rows : resident, 32 * warps, units_of_thread, slots, slots * row_bytes};
}

}  // namespace membound::cuda::tuning
