// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm: a pure function, unit-tested without a GPU. The tree of a row's
// sum (virtual_threads, segments) comes from width and dtype alone; the number of rows only says
// how many virtual threads one thread plays.
#include <cstdint>

namespace membound::cuda::tuning {

enum class RowForm {
  kWarp,      // up to a warp per row, several rows per block, row in registers
  kBlock,     // one row per block, row in registers
  kCluster,   // one row per cluster, row in the registers of its blocks
  kStreamed,  // one row per cluster or block, read twice
};

struct RmsNormConfig {
  RowForm form;
  int vectors_per_item;    // 16-byte vectors of a virtual thread
  int items_per_thread;    // virtual threads that a thread plays
  int max_warps;           // the class of virtual warps per block: 8 or 16
  int threads;             // per block
  int lanes;               // per row (kWarp, a power of two), else threads
  int blocks_per_row;      // the cluster
  int groups;              // of a row: their sums are added one by one
  int segments_per_group;  // kStreamed: pieces that a block holds at once
  bool overlap_launch;     // programmatic dependent launch

  bool operator==(const RmsNormConfig&) const = default;
};

inline constexpr int kVector = 16;  // bytes
inline constexpr int kWarpFormThreads = 128;
inline constexpr int kMaxGroups = 16;
inline constexpr int kStreamedGroups = 8;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
// Chunks that a block of the class holds.
constexpr std::int64_t block_vectors(int vectors_per_item, int max_warps) {
  return static_cast<std::int64_t>(max_warps) * 32 * vectors_per_item;
}
// The virtual threads for `vectors`, shared out evenly over whole warps of `items per thread` each.
constexpr int virtual_threads(std::int64_t vectors, int vectors_per_item, int items_per_thread) {
  return static_cast<int>(ceil_div(vectors, vectors_per_item * items_per_thread * 32)) *
         items_per_thread * 32;
}

// One thread per virtual thread where the GPU has room for each (latency), two beyond (H200,
// bfloat16, us, one and two: 1024 x 4096 6.2 and 5.6, 41008 x 2560 103.5 and 98.8, 10936 x 3200
// 36.4 and 34.2, 25632 x 4096 98.6 and 99.1).
inline constexpr std::int64_t kFewVirtualThreads = 132 * 1024;

// The grid dependency wait costs a block about 1.2 ns of the whole GPU's time (65536 x 1024 with 64
// threads: 66.6 to 81.4 us): only where the launch itself matters, or blocks move more than that.
inline constexpr std::int64_t kOverlapBlocks = 8192;
inline constexpr std::int64_t kOverlapBytes = 3 * 1024;  // read by one block

// Rows of more than 1024 vectors. max_cluster: the largest cluster that the GPU takes, 1 for none.
inline RmsNormConfig rms_norm_wide_config(std::int64_t vectors, int dtype_size, int max_cluster) {
  RmsNormConfig config{};
  config.segments_per_group = 1;
  config.overlap_launch = true;
  config.items_per_thread = 1;
  // Up to 2048 vectors in one block (H200, 8192 x 16384 bfloat16: 131 us, LayerNorm 134; over two
  // blocks 131 and 138).
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
  // Then eight vectors per thread and blocks of 256 (2048 x 65536: 132 us, 140 with four vectors);
  // then twice the threads.
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
    // A GPU starts about one block per nanosecond: each must move 8 KiB to keep up with memory.
    config.threads = vectors == 1 ? 2 * kWarpFormThreads : kWarpFormThreads;
    const std::int64_t rows_per_block = config.threads / config.lanes;
    config.overlap_launch = rows / rows_per_block <= kOverlapBlocks ||
                            rows_per_block * vectors * kVector >= kOverlapBytes;
    return config;
  }
  config.form = RowForm::kBlock;
  config.max_warps = vectors <= block_vectors(2, 8) ? 8 : 16;
  config.overlap_launch = rows <= kOverlapBlocks || vectors * kVector >= kOverlapBytes;
  const int all = virtual_threads(vectors, 2, 2);
  if (rows * all > kFewVirtualThreads) config.items_per_thread = 2;
  config.threads = all / config.items_per_thread;
  config.lanes = config.threads;
  return config;
}

// Whether a row goes to the kernels for any layout, which have the same tree, because it is seldom
// met: kernels of its own would be a fifth of all machine code. beside: more is read or written
// than one result of x's dtype.
constexpr bool uses_generic_kernel(const RmsNormConfig& config, int dtype_size, bool unaligned,
                                   bool fused_input) {
  if (dtype_size == 8) return unaligned || fused_input;
  return (unaligned || fused_input) && config.form == RowForm::kStreamed;
}

// Whether a block has room for rows that wait in shared memory (parked_row.cuh): x and what is
// beside it, and results of unaligned rows apart from both. Of four vectors a thread these are up
// to 96 KiB; a block of 7.5 has 64, of 8.6, 8.9 and 12.0 it has 99. Others go to the kernels for
// any layout.
inline constexpr std::int64_t kSharedBesidesStaged =
    5 << 9;  // what a kernel has beside them, at most
constexpr bool has_room_to_stage(const RmsNormConfig& config, bool unaligned, bool fused_input,
                                 std::int64_t max_shared_bytes) {
  if (config.form != RowForm::kBlock || !fused_input) return true;
  const std::int64_t vectors =
      std::int64_t{config.vectors_per_item} * config.items_per_thread * config.threads;
  const std::int64_t arrays = unaligned ? 3 : 2;
  return kVector * arrays * (vectors + 1) + kSharedBesidesStaged <= max_shared_bytes;
}

// Whether rows of four vectors a thread, which wait in shared memory for more of them to be on
// their way, are so few that a multiprocessor has registers for all that it works on, weights too:
// these come with the row then, not vector by vector after its sum (H100, bfloat16, us: 64 x 12288
// LayerNorm 4.5 and 3.3, RMSNorm 3.7 and 3.3, to float8 4.8 and 3.2, with a gate 5.3 and 4.3, with
// a residual 5.1 and 4.5; 264 x 16384 RMSNorm 8.2 and 7.4, but LayerNorm 9.6 and 10.3; float32 264
// x 8192 10.2 and 7.6). low register pressure: in less than 64 registers, or of float32.
inline constexpr int kHeldThreads = 640;  // of a multiprocessor
inline constexpr int kLowPressureHeldThreads = 1024;
constexpr bool holds_few(const RmsNormConfig& config, std::int64_t rows, int multiprocessors,
                         bool low_register_pressure) {
  return config.form == RowForm::kBlock && config.vectors_per_item == 4 &&
         rows <= std::int64_t{multiprocessors} *
                     ((low_register_pressure ? kLowPressureHeldThreads : kHeldThreads) /
                      config.threads);
}

// Whether rows leave the last quarter of the vectors that `all` virtual threads hold empty.
constexpr bool is_three_quarters_full(std::int64_t vectors, int all) {
  return vectors * 2 <= all * 3;
}

// Rows that a warp's thread group does at once where they are very many (H200, LayerNorm of
// bfloat16, 524288 x 128: 67.2 us, one at a time 75.0), from about two waves of blocks on (65536 x
// 128: 10.3 and 11.8; 16384 x 128: 4.1 and 3.9). Three were no faster where rows are fewer (131072
// x 128: 19.6 us, two 18.8).
inline constexpr int kPairRows = 2;
inline constexpr std::int64_t kNarrowBlocks = 2 * 132 * 8;
// blocks: with one row at a time. Lanes must hold the elements of the shift.
constexpr bool is_many_narrow(const RmsNormConfig& config, std::int64_t blocks) {
  return config.form == RowForm::kWarp && config.items_per_thread == 1 && blocks >= kNarrowBlocks &&
         config.lanes >= 4;
}

// Rows of clusters by blocks that stay, in groups of as many threads as a block has otherwise; not
// where rows are few, counted by their parts (H200, LayerNorm bfloat16, us, a cluster to a row and
// so: 512 x 32768 25.2 and 25.3, 1024 x 32768 44.2 and 38.5, 4096 x 20480 99 and 83, 4096 x 32768
// 156 and 148, 2048 x 65536 159 and 146), nor of float32 (2048 x 32768 141 and 144).
inline constexpr int kWideVectors = 8;
inline constexpr int kWideThreads = 256;
inline constexpr int kWideGroups = 2;
inline constexpr int kWideRing = 3;    // rows of a group in shared memory
inline constexpr int kWideBiases = 6;  // vectors of a thread's bias there
inline constexpr std::int64_t kManyWideParts = 2048;
constexpr std::int64_t wide_bytes(const RmsNormConfig& config) {
  const int vectors = kWideGroups * kWideRing * kWideVectors + kWideBiases;
  return std::int64_t{kVector} * vectors * config.threads;
}
constexpr bool does_wide_rows(const RmsNormConfig& config, std::int64_t rows) {
  return config.form == RowForm::kCluster && config.max_warps == 8 &&
         rows * config.blocks_per_row >= kManyWideParts;
}
// As few of so many clusters as do the rows in as many rounds, so that all end together.
constexpr std::int64_t even_clusters(std::int64_t rows, std::int64_t clusters) {
  const std::int64_t rounds = ceil_div(rows, clusters * kWideGroups);
  return ceil_div(rows, rounds * kWideGroups);
}

// The same row with a thread for each virtual thread.
inline RmsNormConfig one_item_per_thread(RmsNormConfig config) {
  if (config.form != RowForm::kBlock) return config;
  config.threads *= config.items_per_thread;
  config.lanes = config.threads;
  config.items_per_thread = 1;
  return config;
}

// The same row in two virtual threads per thread unless rows are few.
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

// Whether rows that start anywhere are read and written by words of memory, or by their halves too,
// in place of blocks that are put together: fewer instructions, but four or five times as many
// requests (H200, bfloat16, us, out of blocks and so: RMSNorm 300 x 301 2.96 and 1.83, 64 x 4097
// 2.90 and 2.62, but 300 x 2049 3.04 and 3.22, 1024 x 1001 3.72 and 4.06; by whole words 4096 x
// 1002 8.98 and 7.12, 512 x 8190 9.73 and 8.42, but 1024 x 8190 13.9 and 15.1, float32 8192 x
// 301 9.4 and 11.2; with a gate 768 x 1001 5.74 and 4.04, 8192 x 302 10.8 and 7.6).
inline constexpr std::int64_t kFewIn4Bytes = 528 << 10;  // vectors
inline constexpr std::int64_t kFewIn2Bytes = 64 << 10;
inline constexpr std::int64_t kFewGatedIn2Bytes = 160 << 10;
constexpr bool takes_narrow_vectors(const RmsNormConfig& config, std::int64_t rows,
                                    std::int64_t vectors, bool whole_4_bytes, bool gate) {
  const std::int64_t few = whole_4_bytes ? kFewIn4Bytes : gate ? kFewGatedIn2Bytes : kFewIn2Bytes;
  return config.vectors_per_item == 2 && rows * vectors < few;
}
// Whether more of them go so, too, having no kernels that put blocks together in registers: those
// of a warp, with a gate, or of float32.
inline bool uses_narrow_vectors(const RmsNormConfig& config, std::int64_t rows, int dtype_size,
                                bool gate) {
  if (config.vectors_per_item != 2) return false;
  return config.form == RowForm::kWarp || gate ||
         (dtype_size == 4 && coarsened(config, rows).items_per_thread == 1);
}

// The same row in as many threads as what it brings along is best shared by. A residual makes each
// thread wait for twice the bytes, so that a block of more threads has more of them on their way
// (H200, bfloat16, us, coarsened and not: 1024 x 4096 10.4 and 9.6, 512 x 8192 11.2 and 10.1, 1024
// x 8192 19.2 and 18.0, 8192 x 2048 33.7 and 32.9, 1024 x 4096 float32 19.0 and 17.7; no shape of
// 28 was slower). LayerNorm's shift and two sums cost a thread more than that (with a residual 8192
// x 2048 34.8 and 33.1, but 16384 x 4096 128 and 133; without 512 x 5120 6.3 and 5.6, 1024 x 3072
// 6.5 and 6.2, but 512 x 8192 7.1 and 7.6). Nor does a row of float32, whose vectors
// hold half as many numbers, gain by folding (1024 x 4096 10.0 and 9.5, 1024 x 2048 6.3
// and 5.9, 4096 x 1024 10.4 and 9.8, 16384 x 4096 126.3 and 125.6; of 16 bits 8192 x 8192 64.2
// and 66.4).
inline constexpr std::int64_t kFewCentred = kFewVirtualThreads * 3 / 2;
inline constexpr int kUncoarsenedCentred = 128;  // virtual threads
// Aligned rows with no kernel of two virtual threads a thread, but quantised beyond 512 vectors;
// nor have those beside a gate up to there.
constexpr bool is_never_coarsened(int dtype_size, bool residual, bool centred) {
  return !centred && (residual || dtype_size == 4);
}
inline RmsNormConfig spread_over_threads(const RmsNormConfig& config, std::int64_t rows,
                                         int dtype_size, bool unaligned, bool residual,
                                         bool centred) {
  if (unaligned) return coarsened(config, rows);
  if (is_never_coarsened(dtype_size, residual, centred)) return one_item_per_thread(config);
  const int all = config.threads * config.items_per_thread;
  if (residual && all <= kUncoarsenedCentred) return one_item_per_thread(config);
  if (!centred) return config;
  return coarsened(config, rows, residual ? kFewVirtualThreads : kFewCentred);
}

// The same beside a gate: in two virtual threads per thread where the row is wide and of 16 bits,
// which then waits in shared memory, and rows are not few (H200, bfloat16, us with a thread for
// each and so: 8192 x 8192 105 and 95, 1024 x 8192 16.4 and 16.2, 512 x 8192 9.7 and 10.9, 1024 x
// 5120 10.7 and 11.7; float32 16384 x 4096 205 and 191).
inline constexpr std::int64_t kFewGated = 3 * kFewVirtualThreads;
inline RmsNormConfig spread_with_gate(const RmsNormConfig& config, std::int64_t rows,
                                      int dtype_size) {
  if (config.max_warps == 8) return one_item_per_thread(config);
  return coarsened(config, rows, dtype_size == 2 ? kFewGated : kFewVirtualThreads);
}

// The same row in one warp, several rows to a block: a GPU starts no more than a block in 0.7 ns,
// and sums need no barrier. Not where rows are few (H200, bfloat16, us, a block to a row and so:
// RMSNorm 512 x 1024 1.87 and 2.04, 1024 x 1024 2.71 and 2.48, 8192 x 768 10.9 and 7.8; LayerNorm
// 2048 x 1024 4.8 and 5.9, 16384 x 1024 20.5 and 20.1; with a residual 2048 x 1024 5.8 and 6.0,
// 4096 x 1024 10.9 and 10.2), but for LayerNorm with a quarter spared (1 x 768 1.59 and 1.45, 8192
// x 768 10.7 and 9.0). LayerNorm with a residual gains nothing.
inline constexpr std::int64_t kFewByWarps = kFewVirtualThreads / 4;
// Four virtual warps in one: RMSNorm 65536 x 1280 86.9 and 79.8, 8192 x 1536 14.3 and 14.5,
// LayerNorm 16384 x 1600 34.0 and 30.1, 8192 x 1536 16.3 and 16.4, 2048 x 1536 5.9 and 8.0.
inline constexpr std::int64_t kManyByWarps = 8192;
// Five vectors to a lane: LayerNorm 65536 x 1152 87.3 and 78.5 (of six vectors one in four would be
// empty), RMSNorm 8192 x 1152 12.0 and 11.7, with a residual 65536 x 1280 165.5 and 157.7, where
// six are no faster than a block (65536 x 1536 187.4 and 189.0). RMSNorm gains with fewer rows
// (2048 x 1152 4.65 and 3.98, but 1024 x 1536 3.03 and 3.40).
inline constexpr std::int64_t kManyOfFive = 2048;
constexpr bool takes_five_vectors(std::int64_t vectors) {
  return vectors > 4 * 32 && vectors <= 5 * 32;
}

// Quantised rows, whose instructions count, sooner (H200, bfloat16 to float8, scales of rows, a
// block to a row and so: 65536 x 1152 93 and 63, 65536 x 768 49.5 and 41.9, 8192 x 576 10.8
// and 7.2, 4096 x 1536 9.1 and 8.2, float32 8192 x 320 10.7 and 6.0; but 1024 x 768 3.1 and 3.9,
// float32 4096 x 768 6.3 and 7.2).
inline constexpr std::int64_t kFewQuantised = kFewVirtualThreads * 3 / 4;

inline RmsNormConfig by_warps(RmsNormConfig config, std::int64_t rows, std::int64_t vectors,
                              int dtype_size, bool fused_input, bool centred,
                              bool quantised = false) {
  const int all = config.threads * config.items_per_thread;
  if (config.form != RowForm::kBlock || config.vectors_per_item != 2 || dtype_size == 8)
    return config;
  if (fused_input && centred) return config;
  const bool three_quarters_full = is_three_quarters_full(vectors, all);
  bool takes = false;
  if (all == 2 * 32) {
    const std::int64_t few = fused_input || centred ? kFewVirtualThreads
                             : quantised            ? kFewQuantised
                                                    : kFewByWarps;
    takes = (centred && three_quarters_full) || rows * all > few;
  } else if (all == 4 * 32) {
    const bool five = takes_five_vectors(vectors);
    const bool has_kernel =
        centred ? dtype_size == 2 : three_quarters_full && (five || !fused_input);
    const std::int64_t many = quantised && dtype_size == 2 ? kManyByWarps / 2 : kManyByWarps;
    takes = has_kernel && rows >= (five && !centred && !fused_input ? kManyOfFive : many);
  }
  if (!takes) return config;
  config.form = RowForm::kWarp;
  config.threads = kWarpFormThreads;
  config.lanes = 32;
  config.items_per_thread = all / 32;
  config.overlap_launch = true;
  return config;
}

}  // namespace membound::cuda::tuning
