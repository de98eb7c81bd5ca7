// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm: a pure function, unit-tested without a GPU. The tree of a row's
// sum (virtual_threads, segments) comes from width and dtype alone; the number of rows only says
// how many virtual threads one thread plays.
#include <algorithm>
#include <cstdint>
#include <string>

namespace membound::cuda::tuning {

enum class RowForm {
  kWarp,   // a power of two of lanes per row, several rows per block, row in registers
  kBlock,  // one row per block, row in registers
  kWide,   // one row per cluster of blocks, row parked in shared memory (or read twice)
};

struct RmsNormConfig {
  RowForm form;
  int fold;                // virtual threads, of two 16-byte chunks, that a thread plays
  int max_warps;           // kBlock: the class of virtual warps, 8, 16 or 32
  int threads;             // per block
  int lanes;               // per row (kWarp), else threads
  int cluster;             // blocks per row
  int segments_per_block;  // kWide: pieces of vecs * threads chunks that are summed one by one
  bool resident;           // kWide: the row stays in shared memory; else it is read twice
  int shared_bytes;        // dynamic shared memory
  bool overlap_launch;     // programmatic dependent launch

  bool operator==(const RmsNormConfig&) const = default;
};

inline std::string to_string(const RmsNormConfig& c) {
  static constexpr const char* kForms[] = {"warp", "block", "wide"};
  return std::string(kForms[static_cast<int>(c.form)]) + " fold=" + std::to_string(c.fold) +
         " threads=" + std::to_string(c.threads) + " lanes=" + std::to_string(c.lanes) +
         " cluster=" + std::to_string(c.cluster) +
         " segments=" + std::to_string(c.segments_per_block) + (c.resident ? "" : " read twice") +
         (c.overlap_launch ? " overlapped" : "") + " shared=" + std::to_string(c.shared_bytes);
}

inline constexpr int kChunk = 16;        // bytes
inline constexpr int kMaxThreads = 256;  // per block of many rows
inline constexpr int kWarpFormThreads = 128;
inline constexpr int kVecs = 2;            // chunks of a virtual thread
inline constexpr int kSegmentVecs = 8;     // kWide: chunks per thread and segment
inline constexpr int kMaxCluster = 8;      // the portable limit
inline constexpr int kMaxSegments = 1024;  // of one row
// Of the 227 KiB that a block of compute capability 9.0 may have.
inline constexpr int kMaxParkedBytes = 200 * 1024;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr int round_to_warps(std::int64_t threads) {
  return static_cast<int>(ceil_div(threads, 32) * 32);
}

// The sums that the wide form keeps in shared memory: one per warp of each own segment, and three
// rounds (plain sum, largest, scaled sum) of one per segment of the row.
constexpr int wide_sum_slots(int segments_per_block, int cluster) {
  return segments_per_block * (kMaxThreads / 32) + 3 * segments_per_block * cluster;
}

inline RmsNormConfig rms_norm_wide_config(std::int64_t chunks, int accumulate_size,
                                          bool has_clusters) {
  // 32 KiB per block: six blocks per SM, so some load while others store.
  const std::int64_t pieces = ceil_div(chunks, kSegmentVecs * kMaxThreads);
  int cluster = 2;
  while (cluster < kMaxCluster && cluster < pieces) cluster *= 2;
  std::int64_t per_block = ceil_div(pieces, cluster);
  RmsNormConfig config{};
  config.form = RowForm::kWide;
  config.fold = 1;
  config.overlap_launch = true;
  if (per_block * cluster > kMaxSegments) per_block = kMaxSegments / cluster;
  const std::int64_t segment = ceil_div(chunks, per_block * cluster);
  config.threads = std::min(round_to_warps(ceil_div(segment, kSegmentVecs)), kMaxThreads);
  config.lanes = config.threads;
  const std::int64_t parked = per_block * config.threads * kSegmentVecs * kChunk;
  // A segment longer than its threads hold is walked in steps, which only the second read allows.
  config.resident = has_clusters && parked <= kMaxParkedBytes &&
                    segment <= static_cast<std::int64_t>(config.threads) * kSegmentVecs;
  config.cluster = cluster;
  config.segments_per_block = static_cast<int>(per_block);
  // Without clusters one block walks all segments: the same segments, the same bits.
  if (!has_clusters) {
    config.segments_per_block *= cluster;
    config.cluster = 1;
  }
  config.shared_bytes = (config.resident ? static_cast<int>(parked) : 0) +
                        wide_sum_slots(config.segments_per_block, config.cluster) * accumulate_size;
  return config;
}

// One thread per virtual thread where the GPU has room for each (latency), and again where rows are
// very many (H200, 16384 x 4096: 67.1 us against 68.2); two between (1024 x 4096: 5.6 against 6.2).
inline constexpr std::int64_t kFewVirtualThreads = 132 * 1024;
inline constexpr std::int64_t kManyVirtualThreads = 16 * 132 * 1024;

// The grid dependency wait costs a block about 1.2 ns of the whole GPU's time (65536 x 1024 with 64
// threads: 66.6 to 81.4 us): only where the launch itself matters, or blocks move more than that.
inline constexpr std::int64_t kOverlapBlocks = 8192;
inline constexpr std::int64_t kOverlapBytes = 3 * 1024;  // read by one block

// rows, cols >= 1; dtype_size: bytes of an element of x.
inline RmsNormConfig rms_norm_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                     bool has_clusters) {
  const std::int64_t chunks = ceil_div(cols, kChunk / dtype_size);
  RmsNormConfig config{};
  config.fold = 1;
  config.cluster = 1;
  config.segments_per_block = 1;
  config.resident = true;
  config.overlap_launch = true;
  if (chunks <= 64) {
    config.form = RowForm::kWarp;
    config.lanes = 1;
    while (config.lanes * kVecs < chunks) config.lanes *= 2;
    // A GPU starts about one block per nanosecond: each must move 8 KiB to keep up with memory.
    config.threads = chunks == 1 ? 2 * kWarpFormThreads : kWarpFormThreads;
    const std::int64_t rows_per_block = config.threads / config.lanes;
    config.overlap_launch = rows / rows_per_block <= kOverlapBlocks ||
                            rows_per_block * chunks * kChunk >= kOverlapBytes;
    return config;
  }
  if (chunks > 2048) return rms_norm_wide_config(chunks, dtype_size == 8 ? 8 : 4, has_clusters);
  config.form = RowForm::kBlock;
  config.max_warps = chunks <= 512 ? 8 : chunks <= 1024 ? 16 : 32;
  config.overlap_launch = rows <= kOverlapBlocks || chunks * kChunk >= kOverlapBytes;
  const int fold = config.max_warps == 32 ? 4 : 2;
  const int virtual_threads = static_cast<int>(ceil_div(chunks, kVecs * fold * 32)) * fold * 32;
  const bool few = rows * virtual_threads <= kFewVirtualThreads;
  const bool many = rows * virtual_threads > kManyVirtualThreads;
  if (!few && !(many && config.max_warps == 8)) config.fold = fold;
  config.threads = virtual_threads / config.fold;
  config.lanes = config.threads;
  return config;
}

}  // namespace membound::cuda::tuning
