// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of gated_activation_quant: a pure function, unit-tested without a GPU.
#include <cstddef>
#include <cstdint>

namespace membound::cuda::tuning {

inline constexpr int kGateQuantThreads = 512;      // of a block, at most
inline constexpr int kGateQuantTileThreads = 128;  // with a part of a row, or several rows
// Units that a thread has in flight before it computes one.
inline constexpr int kQuantUnitsInFlight = 2;
// Most units per thread for rows that fit in one block; the fixed work per row and thread is worth
// 1.5 units (bfloat16 16384 x 4096: 112.6 us, 115.5 with 8). With few rows, fewer units per thread
// keep all threads of the GPU busy.
inline constexpr int kQuantUnitsPerThread = 4;
inline constexpr std::int64_t kQuantThreadsAtOnce = 132 * 1024;
inline constexpr std::size_t kStaticSharedReserve = 2048;  // static shared memory, at most

// A block has threads / lanes rows, or a tile of one row.
struct GatedActivationQuantConfig {
  int threads;
  int lanes;       // threads per row, a power of two
  int part_units;  // units of a row that a block has at once: its tile, or a part of a whole row
  std::uint32_t tiles;  // blocks per row
  std::int64_t blocks;
  std::size_t result_bytes;  // shared memory for the results of a part
  int per_thread;            // units per thread, if they are kept in registers
};

// Units whose results fit in half of a block's maximum shared memory.
inline int quant_units_staged(std::size_t unit_bytes, std::size_t max_shared_bytes) {
  return static_cast<int>(max_shared_bytes / 2 / unit_bytes);
}

// units: of kWidth elements, per row. group_lanes: threads that share a scale, or 1. whole_rows: a
// row shares one scale, so that a block must see all of it. unit_bytes: of a unit's results. Shared
// memory is sized for two blocks per SM, so that one loads while the other stores.
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
  const int holds = quant_units_staged(unit_bytes, max_shared_bytes) / rows_per_block;
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

// Tiles of aligned rows whose results stay in registers until the scale is known; faster than
// staging them in shared memory (H100, bfloat16 16384 x 4096, a scale per row: 120.9 -> 113.2 us).
inline constexpr int kQuantTileUnits = 2;  // per thread, at most
inline constexpr int kQuantTileThreads = 1024;
// Few units: one per thread, in small blocks. More units take larger blocks, because starting many
// small blocks takes longer (H100, bfloat16 256 x 4096: 4.77 us with 64 threads, 3.43 us with 256).
inline constexpr std::int64_t kUnitsOfSmallTiles = 64 * 1024;
inline constexpr int kSmallQuantTileThreads = 64;
inline constexpr int kFewQuantTileThreads = 256;

// A row that shares one scale is done by one block, or by a cluster of up to max_cluster blocks
// (`tiles` counts them). blocks is 0 if the row does not fit in such a cluster.
inline constexpr std::int64_t kManyQuantUnits = 2048;  // of a row; wider ones take a cluster
inline constexpr int kWideQuantThreads = 512;          // of a block of a cluster, at most
// Few rows of at least this many units take a cluster, too, because their arithmetic would keep one
// SM busy for long (H100, bfloat16 1 x 14336: 3.24 -> 2.10 us).
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
  // The larger blocks were measured with one scale for the whole tensor only.
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

// True if co-resident blocks leave at most 1/16 of an SM's 1024 threads without work. Other shapes
// use the persistent kernel if rows are many (H100, bfloat16 8192 x 11008: 201 -> 159 us).
inline bool fills_threads(const GatedActivationQuantConfig& config) {
  const int co_resident = config.blocks > 0 ? kQuantTileThreads / config.threads : 0;
  return co_resident > 1 && 16 * co_resident * config.threads >= 15 * kQuantTileThreads;
}

// Persistent kernel, for rows with one scale each. A thread has two units, or three: aligned 16-bit
// rows take three where few threads idle, as the fixed work per row is spread over more units
// (bfloat16 8192 x 5632: 68.5 -> 63.9 us). Unaligned rows touch one unit more than they fill, and
// take three where two would leave only one block per SM (H100, bfloat16 8192 x 8191: 138 -> 128
// us).
inline constexpr std::int64_t kThreeUnitsOf = 768;  // units of a row, at most
// Fewest units of an unaligned row: narrower rows leave most of a warp idle (H100, bfloat16 400000
// x 127: 247 -> 356 us with the persistent kernel).
inline constexpr std::int64_t kFewestUnalignedUnits = 24;
inline constexpr int kQuantRowSlots = 4;  // rows in flight per block, at most
// 16-byte vectors of shared memory, each for gate and up, that an unaligned row takes in addition
// to one per unit.
inline constexpr int kExtraUnalignedVectors = 3;
// Threads of an SM whose registers have room for the results.
constexpr int quant_row_threads(int units_of_thread) { return units_of_thread == 3 ? 768 : 1024; }

struct GatedActivationQuantRowsConfig {
  std::int64_t blocks;  // 0: this kernel cannot take the rows
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
  const auto blocks_per_sm = [&](int of_thread) {
    return quant_row_threads(of_thread) / 32 / warps_of(of_thread);
  };
  const bool three =
      aligned ? dtype_size == 2 && units <= kThreeUnitsOf && 10 * units >= 9 * 3 * 32 * warps_of(3)
              : blocks_per_sm(2) < 2 && blocks_per_sm(3) > blocks_per_sm(2);
  const int units_of_thread = three ? 3 : 2;
  const int warps = warps_of(units_of_thread), co_resident = blocks_per_sm(units_of_thread);
  const std::int64_t row_vectors = 2 * (units + (aligned ? 0 : kExtraUnalignedVectors));
  const auto row_bytes = static_cast<std::size_t>(row_vectors) * 16;
  int slots = kQuantRowSlots;
  while (slots > 1 && co_resident * (slots * row_bytes + kStaticSharedReserve) > max_shared_bytes)
    --slots;
  const std::int64_t resident = std::int64_t{co_resident} * multiprocessors;
  if (slots < 2) return {};
  return {rows < resident ? rows : resident, 32 * warps, units_of_thread, slots, slots * row_bytes};
}

}  // namespace membound::cuda::tuning
