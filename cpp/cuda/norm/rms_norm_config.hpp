// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm: a pure function, unit-tested without a GPU. Width and dtype
// alone fix the reduction tree of a row (virtual threads, segments), so that results are
// bit-identical for any number of rows. The number of rows decides only how many virtual threads
// one thread executes (items per thread).
#include <cstdint>

namespace membound::cuda::tuning {

enum class RowForm {
  kWarp,      // several rows per block, at most a warp per row
  kBlock,     // one row per block, row in registers or staged in shared memory
  kCluster,   // one row per cluster, spread over its blocks
  kStreamed,  // one row per cluster or block, read twice
};

struct RmsNormConfig {
  RowForm form;
  int vectors_per_item;    // 16-byte vectors of a virtual thread
  int items_per_thread;    // virtual threads that one thread executes
  int max_warps;           // upper bound on virtual warps per block: 8 or 16
  int threads;             // per block
  int lanes;               // threads per row; a power of two for kWarp
  int blocks_per_row;      // cluster size
  int groups;              // parts of a row whose sums are added in order
  int segments_per_group;  // kStreamed: segments that a block reads one after the other
  bool overlap_launch;     // programmatic dependent launch

  bool operator==(const RmsNormConfig&) const = default;
};

inline constexpr int kVector = 16;  // bytes
inline constexpr int kWarpFormThreads = 128;
inline constexpr int kMaxGroups = 16;
inline constexpr int kStreamedGroups = 8;
inline constexpr int kSmallBlock = 384;  // threads; an SM holds three such blocks instead of two

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// 16-byte vectors that a block of at most max_warps warps holds.
constexpr std::int64_t block_vectors(int vectors_per_item, int max_warps) {
  return static_cast<std::int64_t>(max_warps) * 32 * vectors_per_item;
}
// Virtual threads for `vectors`, rounded up to whole warps of items_per_thread items each.
constexpr int virtual_threads(std::int64_t vectors, int vectors_per_item, int items_per_thread) {
  return static_cast<int>(ceil_div(vectors, vectors_per_item * items_per_thread * 32)) *
         items_per_thread * 32;
}

// Up to this many virtual threads one thread executes one item, for latency; beyond it two, to keep
// more bytes in flight (1024 x 4096 bfloat16 on H200: 6.2 -> 5.6 us).
inline constexpr std::int64_t kFewVirtualThreads = 132 * 1024;

// griddepcontrol.wait costs about 1.2 ns of GPU time per block, so launches overlap only if blocks
// are few enough for the launch latency to matter, or if each block moves enough bytes to hide it.
inline constexpr std::int64_t kOverlapBlocks = 8192;
inline constexpr std::int64_t kOverlapBytes = 3 * 1024;  // read by one block

// Rows of more than 1024 vectors. max_cluster: the largest cluster of the GPU, 1 without clusters.
inline RmsNormConfig rms_norm_wide_config(std::int64_t vectors, int dtype_size, int max_cluster) {
  RmsNormConfig config{};
  config.segments_per_group = 1;
  config.overlap_launch = true;
  config.items_per_thread = 1;
  // Up to 2048 vectors one block is at least as fast as a cluster of two.
  if (vectors <= block_vectors(4, 16)) {
    config.form = RowForm::kBlock;
    config.vectors_per_item = 4;
    config.max_warps = 16;
    config.threads = virtual_threads(vectors, config.vectors_per_item, 1);
    config.lanes = config.threads;
    config.blocks_per_row = 1;
    config.groups = 1;
    return config;
  }
  // Wider rows take eight vectors per thread in blocks of 256 threads, which beat four vectors, and
  // blocks of 512 only where those do not suffice.
  config.vectors_per_item = 8;
  config.max_warps = dtype_size == 8 && vectors > kMaxGroups * block_vectors(8, 8) ? 16 : 8;
  const bool held =
      vectors <= kMaxGroups * block_vectors(config.vectors_per_item, config.max_warps);
  if (held) {
    config.groups = 2;
    while (config.groups * block_vectors(config.vectors_per_item, config.max_warps) < vectors)
      config.groups *= 2;
  } else {
    config.max_warps = 8;
    config.groups = kStreamedGroups;
    config.segments_per_group = static_cast<int>(ceil_div(
        vectors, config.groups * block_vectors(config.vectors_per_item, config.max_warps)));
  }
  const std::int64_t segments = config.groups * config.segments_per_group;
  config.threads = virtual_threads(ceil_div(vectors, segments), config.vectors_per_item, 1);
  config.lanes = config.threads;
  config.form = held && config.groups <= max_cluster ? RowForm::kCluster : RowForm::kStreamed;
  config.blocks_per_row = config.groups <= max_cluster ? config.groups : max_cluster;
  return config;
}

// rows, cols >= 1; dtype_size: bytes of an element of x; max_cluster as above.
inline RmsNormConfig rms_norm_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                     int max_cluster) {
  const std::int64_t vectors = ceil_div(cols, kVector / dtype_size);
  if (vectors > block_vectors(2, 16)) return rms_norm_wide_config(vectors, dtype_size, max_cluster);
  RmsNormConfig config{};
  config.vectors_per_item = 2;
  config.items_per_thread = 1;
  config.blocks_per_row = 1;
  config.groups = 1;
  config.segments_per_group = 1;
  if (vectors <= 64) {
    config.form = RowForm::kWarp;
    config.lanes = 1;
    while (config.lanes * config.vectors_per_item < vectors) config.lanes *= 2;
    // Blocks launch at about one per nanosecond, so each must move 8 KiB to keep up with memory.
    config.threads = vectors == 1 ? 2 * kWarpFormThreads : kWarpFormThreads;
    const std::int64_t rows_per_block = config.threads / config.lanes;
    config.overlap_launch = rows / rows_per_block <= kOverlapBlocks ||
                            rows_per_block * vectors * kVector >= kOverlapBytes;
    return config;
  }
  config.form = RowForm::kBlock;
  config.max_warps = 16;
  config.overlap_launch = rows <= kOverlapBlocks || vectors * kVector >= kOverlapBytes;
  const int all = virtual_threads(vectors, 2, 2);
  if (rows * all > kFewVirtualThreads) config.items_per_thread = 2;
  config.threads = all / config.items_per_thread;
  config.lanes = config.threads;
  return config;
}

// True for rows of one block of at most 512 vectors. With a gate, or quantised with a residual,
// they have kernels of one item per thread alone.
constexpr bool is_half_block(const RmsNormConfig& config) {
  return config.form == RowForm::kBlock && config.vectors_per_item == 2 &&
         config.threads * config.items_per_thread <= 8 * 32;
}

// True for rows that are read twice and have a fused input (more than x is read, or more than one
// result of x's dtype is written): the strided kernels take them, in the same tree.
constexpr bool uses_strided_kernel(const RmsNormConfig& config, bool fused_input) {
  return fused_input && config.form == RowForm::kStreamed;
}

// True if a block's shared memory holds the staged row (cuda/row/staged_row.cuh): x and the fused
// input. With four vectors per thread that is up to 64 KiB, while a block may have 64 KiB on
// compute capability 7.5. Rows that do not fit go to the strided kernels.
inline constexpr std::int64_t kStaticSharedBytes = 5 << 9;  // bound on static shared memory
constexpr bool has_room_to_stage(const RmsNormConfig& config, bool fused_input,
                                 std::int64_t max_shared_bytes) {
  if (config.form != RowForm::kBlock || !fused_input) return true;
  const std::int64_t vectors =
      std::int64_t{config.vectors_per_item} * config.items_per_thread * config.threads;
  return kVector * 2 * (vectors + 1) + kStaticSharedBytes <= max_shared_bytes;
}

// True if rows of four vectors per thread are so few that the SM has registers for a row and its
// weights: the weights are then loaded with the row, not vector by vector after its sum (64 x 12288
// LayerNorm, bfloat16 on H100: 4.5 -> 3.3 us). With more rows staging in shared memory wins, as
// more of them are in flight. low_register_pressure: float32, or fewer than 64 registers.
inline constexpr int kRegisterRowThreads = 640;  // per SM
inline constexpr int kLowPressureRegisterRowThreads = 1024;
constexpr bool holds_few_in_registers(const RmsNormConfig& config, std::int64_t rows,
                                      int multiprocessors, bool low_register_pressure) {
  return config.form == RowForm::kBlock && config.vectors_per_item == 4 &&
         rows <=
             std::int64_t{multiprocessors} *
                 ((low_register_pressure ? kLowPressureRegisterRowThreads : kRegisterRowThreads) /
                  config.threads);
}

// True if a row leaves the last quarter of the vectors that `all` virtual threads hold empty.
constexpr bool is_three_quarters_full(std::int64_t vectors, int all) {
  return vectors * 2 <= all * 3;
}

// Rows that a thread group of a warp works on at once if rows are very many: shared instructions
// and more loads in flight (524288 x 128 LayerNorm, bfloat16 on H200: 75.0 -> 67.2 us). It pays
// from about two waves of blocks on; three rows were no faster.
inline constexpr int kPairRows = 2;
inline constexpr std::int64_t kNarrowBlocks = 2 * 132 * 8;
// blocks: the grid at one row per thread group. The lanes must hold the elements of the shift.
constexpr bool is_many_narrow(const RmsNormConfig& config, std::int64_t blocks) {
  return config.form == RowForm::kWarp && config.items_per_thread == 1 && blocks >= kNarrowBlocks &&
         config.lanes >= 4;
}

// The same row with one virtual thread per thread.
inline RmsNormConfig one_item_per_thread(RmsNormConfig config) {
  if (config.form != RowForm::kBlock) return config;
  config.threads *= config.items_per_thread;
  config.lanes = config.threads;
  config.items_per_thread = 1;
  return config;
}

// The same row with two virtual threads per thread, unless there are few rows.
inline RmsNormConfig coarsened(RmsNormConfig config, std::int64_t rows,
                               std::int64_t few = kFewVirtualThreads) {
  if (config.form != RowForm::kBlock || config.vectors_per_item != 2) return config;
  if (rows * config.threads * config.items_per_thread <= few) return one_item_per_thread(config);
  if (config.items_per_thread == 2) return config;
  config.threads /= 2;
  config.lanes = config.threads;
  config.items_per_thread = 2;
  return config;
}

// True if unaligned rows are so few that they are read and written as vectors of `width` bytes
// instead of through the bulk pipeline (300 x 301 RMSNorm, bfloat16 on H200: 2.96 -> 1.83 us; many
// rows lose even with 8 bytes, 16384 x 4100: 73 -> 104). The limits count 16 bytes of the input.
inline constexpr std::int64_t kFewIn4Bytes = 528 << 10;  // for 8 bytes, too
inline constexpr std::int64_t kFewIn2Bytes = 64 << 10;
constexpr bool takes_narrow_vectors(const RmsNormConfig& config, std::int64_t rows,
                                    std::int64_t vectors, int width) {
  if (config.vectors_per_item != 2) return false;
  return rows * vectors < (width == 2 ? kFewIn2Bytes : kFewIn4Bytes);
}

// The same row with the items per thread that suit its inputs. A residual doubles the bytes that a
// thread waits for, so more threads keep more of them in flight (1024 x 4096 bfloat16 on H200: 10.4
// -> 9.6 us uncoarsened). float32 gains nothing from coarsening either: its vectors hold half as
// many numbers. LayerNorm pays for the variance shift and the second sum in every thread, so it is
// coarsened unless rows are few.
inline constexpr std::int64_t kFewCentred = kFewVirtualThreads * 3 / 2;
inline constexpr int kUncoarsenedCentred = 128;  // virtual threads per row
// True for aligned rows of one block that have no kernel of two items per thread, unless they are
// quantised.
constexpr bool is_never_coarsened(int dtype_size, bool residual, bool centred) {
  return !centred && (residual || dtype_size == 4);
}
inline RmsNormConfig spread_over_threads(const RmsNormConfig& config, std::int64_t rows,
                                         int dtype_size, bool residual, bool centred) {
  if (is_never_coarsened(dtype_size, residual, centred)) return one_item_per_thread(config);
  const int all = config.threads * config.items_per_thread;
  if (residual && all <= kUncoarsenedCentred) return one_item_per_thread(config);
  if (!centred) return config;
  return coarsened(config, rows, residual ? kFewVirtualThreads : kFewCentred);
}

// The same with a gate. Wide 16-bit rows are then staged in shared memory, and two items per thread
// pay only with many rows (8192 x 8192 bfloat16 on H200: 105 -> 95 us, but 512 x 8192 9.7 -> 10.9).
inline constexpr std::int64_t kFewGated = 3 * kFewVirtualThreads;
inline RmsNormConfig spread_with_gate(const RmsNormConfig& config, std::int64_t rows,
                                      int dtype_size) {
  if (is_half_block(config)) return one_item_per_thread(config);
  return coarsened(config, rows, dtype_size == 2 ? kFewGated : kFewVirtualThreads);
}

// Thresholds of one_warp_per_row. One warp per row, several rows per block, needs no barrier and
// fewer blocks, which launch at no more than one per 0.7 ns (8192 x 768 RMSNorm, bfloat16 on H200:
// 11.4 -> 8.1 us). With few rows a block per row is faster, except for LayerNorm of rows that leave
// the last quarter empty.
inline constexpr std::int64_t kMinThreadsWarpPerRow = kFewVirtualThreads / 4;
inline constexpr std::int64_t kFewQuantised = kFewVirtualThreads * 3 / 4;
// The same for rows of four virtual warps, of up to five vectors per lane (65536 x 1152 LayerNorm,
// bfloat16 on H200: 89.8 -> 81.6 us). Six per lane pay for quantised rows, which are
// instruction-bound, and for very many rows of LayerNorm.
inline constexpr std::int64_t kMinRowsFourItems = 8192;
inline constexpr std::int64_t kMinRowsFiveVectors = 2048;  // RMSNorm
inline constexpr std::int64_t kMinRowsSixVectors = 32768;  // LayerNorm
constexpr bool takes_five_vectors(std::int64_t vectors) {
  return vectors > 4 * 32 && vectors <= 5 * 32;
}

inline RmsNormConfig one_warp_per_row(RmsNormConfig config, std::int64_t rows, std::int64_t vectors,
                                      int dtype_size, bool fused_input, bool centred,
                                      bool quantised = false) {
  const int all = config.threads * config.items_per_thread;
  if (config.form != RowForm::kBlock || config.vectors_per_item != 2 || dtype_size == 8)
    return config;
  const bool three_quarters_full = is_three_quarters_full(vectors, all);
  bool takes = false;
  if (all == 2 * 32 && !fused_input) {
    const std::int64_t few = centred     ? kFewVirtualThreads
                             : quantised ? kFewQuantised
                                         : kMinThreadsWarpPerRow;
    takes = (centred && three_quarters_full) || rows * all > few;
  } else if (all == 4 * 32) {
    const bool five = takes_five_vectors(vectors);
    const bool has_kernel = three_quarters_full && (quantised || five || centred) &&
                            !(centred && (fused_input || dtype_size != 2));
    std::int64_t many = kMinRowsFourItems;
    if (quantised && dtype_size == 2) many = kMinRowsFourItems / 2;
    if (five && !centred && !fused_input) many = kMinRowsFiveVectors;
    if (!five && centred) many = kMinRowsSixVectors;
    takes = has_kernel && rows >= many;
  }
  if (!takes) return config;
  config.form = RowForm::kWarp;
  config.threads = kWarpFormThreads;
  config.lanes = 32;
  config.items_per_thread = all / 32;
  config.overlap_launch = true;
  return config;
}

// The threads of an aligned quantised row. With a residual two items per thread lose up to 512
// vectors (1024 x 4096 bfloat16 to float8 on H200: 11.3 -> 10.1 us uncoarsened), and 16-bit rows
// gain only where they are many.
inline RmsNormConfig quantised_config(const RmsNormConfig& config, std::int64_t rows,
                                      std::int64_t vectors, int dtype_size, bool residual) {
  if (!is_half_block(config)) return coarsened(config, rows);
  if (residual) return one_item_per_thread(config);
  const std::int64_t few = (dtype_size == 2 ? 4 : 1) * kFewVirtualThreads;
  return one_warp_per_row(coarsened(config, rows, few), rows, vectors, dtype_size, false, false,
                          true);
}

}  // namespace membound::cuda::tuning
