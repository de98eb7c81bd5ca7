// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm_backward: a pure function, unit-tested without a GPU. All that
// fixes the tree of dweight (the form, partial_rows, threads) comes from rows, cols and dtype.
#include <algorithm>
#include <cstdint>

#include "cuda/norm/gradient_form.hpp"
#include "cuda/norm/rms_norm_config.hpp"

namespace membound::cuda::tuning {

struct RmsNormBackwardConfig {
  GradientForm form;
  int threads;           // per block
  int lanes;             // per row, or per block's part of it
  int vectors_per_item;  // 16-byte vectors of a thread
  int blocks_per_row;    // the cluster
  int partial_rows;      // kPersistent: blocks or clusters, each of a pair by itself
  bool paired;           // kPersistent: sums of two are added up before others, whatever the kernel
  int ring;              // kPersistent: rows in shared memory
  int shared_bytes;      // of the ring
  RmsNormConfig rows;    // kSpecialised, and dx alone: the blocks of rows
  std::int64_t column_blocks;

  bool operator==(const RmsNormBackwardConfig&) const = default;
};

// Chunks of each row that a block of columns adds up: 64 bytes, or 128 of wide rows whose columns
// come through shared memory, kColumnRows rows of a thread at a time (H200, bfloat16, us, 64
// through registers, 128, and so: 384 x 8192 12.5, 11.0 and 9.5, 128 x 8192 6.7, 5.1 and 4.5,
// LayerNorm 8.0, 6.3 and 5.5, 512 x 5632 14.4 and, so, 9.8; narrower rows lose, whose blocks have
// fewer threads for more rows: 1024 x 2048 7.8 and 9.3, 512 x 5120 8.2 and 8.7).
inline constexpr int kColumnSegment = 4;
inline constexpr int kWideColumnSegment = 8;
inline constexpr int kColumnRows = 4;
// Whatever the alignment, on which the bits of dweight do not depend.
inline constexpr std::int64_t kNarrowVectors = 640;  // of a row, at most
constexpr int column_segment(std::int64_t vectors) {
  return vectors <= kNarrowVectors ? kColumnSegment : kWideColumnSegment;
}
constexpr int column_bytes(int threads) { return kColumnRows * 2 * threads * kVector; }
inline constexpr int kGradientVectorsPerItem =
    2;                                   // vectors of a thread that are added up before its warp
inline constexpr int kSmallBlock = 384;  // three to a multiprocessor instead of two
// With two vectors per thread two instead of one; more threads where 80 registers do (H200, us:
// RMSNorm bfloat16 13016 x 5376 116.6 to 105.2, 3792 x 6144 41.2 to 38.7, float32 12152 x 2880
// 121.3 to 107.5, LayerNorm 122.3 to 105.7, 1440 x 2880 20.2 to 17.2; but of 16 bits, spilled, 1352
// x 6144 21.9 to 24.4, 11392 x 6143 159 to 200).
inline constexpr int kSmallPairs = 320;
constexpr int small_pairs(int dtype_size, bool centred, bool gated) {
  return !gated && dtype_size < 8 && (dtype_size == 4 || !centred) ? 384 : kSmallPairs;
}
inline constexpr int kSmallFours = 384;  // with four: 168 registers for each
inline constexpr int kClusterRing = 3;   // rows of a cluster's ring: two are worked on
inline constexpr int kSharedBesidesStages =
    32 << 10;                             // bytes that a block has at most besides its ring
inline constexpr int kUnalignedRing = 2;  // rows of unaligned rows' ring

// With dsum beside the next row in registers 16 bytes spill, beside a ring none, which few rows do
// not repay (H200, RMSNorm, bfloat16, so and through a ring: 16384 x 4096 137 and 128 us, 8192 x
// 2048 38.0 and 36.3, with two rows to a group 1024 x 1024 6.6 and 7.1).
inline constexpr int kRowsForRing = 4;  // of a group

// Whether rows without options, whose next one may be in registers, come through a ring, too:
// threads without a vector hide no waiting (H200, bfloat16, us: 45568 x 1536 113 to 103, 121520 x
// 576 118 to 105, 182288 x 384 111 to 104, 5424 x 1536 17.9 to 17.1; but with five rows to a group
// 2600 x 1280 9.7 to 9.8, 10416 x 320 9.9 to 10.2, and where all threads have one 45568 x 512 37.4
// to 37.5). rounds: rows of a group.
inline constexpr int kRowsForPlainRing = 10;
constexpr bool rings_plain_rows(const RmsNormBackwardConfig& config, std::int64_t vectors,
                                int rounds) {
  return vectors * (config.threads / config.lanes) < kPersistentBlock &&
         rounds >= kRowsForPlainRing;
}

// dx alone: blocks of rows, until the persistent form, whose sums go nowhere, has the next row on
// its way for long enough. Bytes of one array up to which they are faster (H200, bfloat16, us, so
// and persistent: RMSNorm 1024 x 4096 8.4 and 8.4, 512 x 8192 9.7 and 9.9, 1024 x 8192 17.1 and
// 15.9, LayerNorm 256 x 8192 5.9 and 7.0, 512 x 8192 10.3 and 10.0; 512 x 16384 16.2 and 17.0,
// LayerNorm 17.3 and 18.4; odd widths 1024 x 1001 5.6 and 7.2, 256 x 4097 7.9 and 8.3, 512 x 4097
// 13.8 and 10.3).
inline std::int64_t bytes_alone(const GradientRows& of) {
  constexpr std::int64_t kMiB = 1 << 20;
  if (of.unaligned() && of.vectors > 32) return of.gated ? kMiB / 2 : 2 * kMiB;
  if (of.gated) return (of.vectors <= 2 * kSmallPairs ? 8 : 4) * kMiB;
  if (of.vectors > 2 * kPersistentBlock) return 16 * kMiB;
  return (of.centred ? 4 : 8) * kMiB;
}
inline bool rows_alone_in_blocks(std::int64_t rows, std::int64_t cols, const GradientRows& of) {
  return !has_persistent_form(of.vectors) || rows * cols * of.dtype_size <= bytes_alone(of);
}

// Whether few threads with four vectors each have registers for them, and a kernel.
inline bool fits_fours(const GradientRows& of, int blocks) {
  return !of.gated && of.dtype_size <= 4 && of.vectors <= blocks * 4 * kSmallFours;
}

// Chunks of a thread, blocks of a row and rows in the ring of shared memory (0: the next row is in
// registers), for aligned rows on GPUs with room for the ring, or for the others. crowded: with the
// sums of dbias, or a gate, whose registers the next row would need (H200, LayerNorm, bfloat16, a
// copy over the time in registers and in the ring: 16384 x 4096 0.64, 0.76; 65536 x 1024 0.73,
// 0.84; 8192 x 16384 0.64, 0.74; 4096 x 32768 0.63 either way).
struct PersistentShape {
  int vectors_per_item;
  int blocks_per_row;
  int ring;
};
inline PersistentShape persistent_shape(const GradientRows& of, bool ring,
                                        bool low_register_pressure = true) {
  const std::int64_t vectors = of.vectors;
  // H200, ratio to a copy with the next row in registers and with the ring: 16384 x 3072 bfloat16
  // 0.83, 0.92; 8192 x 5120 0.76, 0.90; 8192 x 8192 0.91, 0.94. At 2048 and below registers give
  // 0.97.
  if (vectors <= kPersistentBlock) {
    return {1, 1,
            ring && (of.has_bias_or_gate() || (vectors > 256 && vectors <= kSmallBlock)) ? 2 : 0};
  }
  // Rows that are soon read would wait for an exchange between two blocks (H200, bfloat16, 8192
  // rows by clusters of two and so: 8200 columns 155 and 113 us, 10240 146 and 128, 12288 164 and
  // 156; LayerNorm 188 and 119, 169 and 126, 173 and 152; float32 5120 164 and 127). A ring of
  // three rows is no faster.
  const bool fours = ring && low_register_pressure;
  if (fours && vectors > 2 * kPersistentBlock && fits_fours(of, 1)) return {4, 1, 2};
  // Of four blocks 28 clusters find a place, of two 64 (LayerNorm, 4096 x 20480: 193 and 133 us).
  if (fours && of.centred && vectors > 4 * kPersistentBlock && fits_fours(of, 2)) {
    return {4, 2, kClusterRing};
  }
  PersistentShape shape{2, 1, ring ? 2 : 0};
  // Clusters add up the next row while the sums of one are on their way: H200, bfloat16, without
  // and with that, LayerNorm 8192 x 16384 0.76, 0.93, 1024 x 131072 0.65, 0.82; RMSNorm 2048 x
  // 65536 0.83, 0.92. A block alone does not gain (8192 x 8192 102 us, 105).
  if (ring && vectors > 2 * kPersistentBlock) shape.ring = kClusterRing;
  if (ring && !of.has_bias_or_gate() && vectors > 4 * kPersistentBlock) shape.vectors_per_item = 4;
  while (std::int64_t{shape.blocks_per_row} * shape.vectors_per_item * kPersistentBlock < vectors) {
    shape.blocks_per_row *= 2;
  }
  return shape;
}

// Whether dsum comes through the ring, too: asked for with its row it is waited for where a
// multiprocessor has one row at a time (H200, bfloat16, 8192 rows, so and through the ring: 9216
// columns 185 and 148 us, 10240 193 and 164, 14336 260 and 228, 16384 281 and 262; but float32
// 16384 x 4100 266 and 306). More vectors leave no room for it.
constexpr bool rings_dsum(int vectors_per_item, bool clusters, int dtype_size) {
  return dtype_size == 2 && vectors_per_item == (clusters ? 2 : 4);
}

// Bytes from a line of shared memory to the ring: as measured, not understood (H200, RMSNorm,
// bfloat16, from a line on and so, the same instructions but for the address: 4096 x 24576 157 and
// 151 us, x 32768 210 and 202, 1024 x 131072 210 and 205, but 2048 x 65536 204 and 208). All other
// rings lose by it (8192 x 16384 196 and 199, LayerNorm 4096 x 32768 221 and 230).
constexpr int ring_offset(int vectors_per_item, bool clusters, int max_threads) {
  return vectors_per_item == 4 && clusters && max_threads == kPersistentBlock ? 2 * kVector : 0;
}

// Whether a lane of narrow rows beside a gate plays four in three vectors, or else two where there
// are a few of 16 bits (H100, us: bfloat16 628992 x 80 289 and 180, 524288 x 96 250 and 192,
// float32 431 and 390; bfloat16 393216 x 128 208 and 198, 16384 x 128 15.2 and 12.3, but float32
// 262144 x 128 241 and 263). Without a gate they wait for memory (628992 x 80 114 and 120,
// LayerNorm 121 and 125).
constexpr bool coarsens_four_lanes(std::int64_t vectors, int lanes) {
  return lanes >= 8 && is_three_quarters_full(vectors, lanes / 2);
}
inline constexpr int kFewCoarsenedLanes = 4;

// Bytes of partial sums up to which groups may have one row or none: blocks are few where several
// groups share one (H200, bfloat16, us, with two rows or more to a group and so: 400 x 128 5.1 and
// 3.7, 1000 x 65 8.7 and 5.2, 200 x 1001 10.7 and 7.4, 1000 x 1024 6.3 and 5.7; but LayerNorm 1000
// x 1024 7.2 and 7.7, with a gate 1500 x 1001 16.3 and 18.1, float32 300 x 1001 12.7 and 15.5).
inline std::int64_t few_sums(const GradientRows& of) {
  constexpr std::int64_t kKiB = 1 << 10;
  if (of.gated && of.unaligned()) return (of.dtype_size == 2 ? 512 : 256) * kKiB;
  return (of.centred && !of.unaligned() ? 256 : 1024) * kKiB;
}

// Blocks that share a multiprocessor: more of those with few threads (H200, us, by three and four
// of 257 to 288 vectors: bfloat16 LayerNorm 33136 x 2112 127 to 106, 10120 x 2304 45.0 to 41.5;
// RMSNorm 10120 x 2304 39.4 to 38.8, with a residual 41.4 to 39.3, 11040 x 2112 with an offset 43.5
// to 39.4, 16380 x 2304 60.1 to 59.4, but 30376 104.5 to 108.2, float32 10120 x 1152 37.2 to 37.8;
// by two and three of 161 to 192: LayerNorm 45568 x 1536 125 to 109, 6200 x 1344 24.1 to 19.8,
// float32 45568 x 768 107.5 to 103.1; RMSNorm with an offset 103 to 108). Of clusters those that
// keep to half of the registers (by one and two, with a gate, bfloat16: 4552 x 9216 203 to 114, 488
// x 10240 29.8 to 21.8, 2048 x 20480 225 to 124, float32 4096 x 5120 170 to 119; LayerNorm 1704 x
// 20480 132 to 105).
inline constexpr std::int64_t kManyByThree = 20480;  // rows
inline int blocks_together(std::int64_t rows, const GradientRows& of,
                           const PersistentShape& shape) {
  const std::int64_t vectors = of.vectors;
  if (shape.blocks_per_row > 1) {
    const bool fits = of.gated || (of.centred && of.dtype_size == 4 && shape.vectors_per_item == 2);
    return fits && ceil_div(vectors, shape.blocks_per_row) <= 2 * kSmallPairs ? 2 : 1;
  }
  if (shape.vectors_per_item == 2) {
    return vectors <= 2 * small_pairs(of.dtype_size, of.centred, of.gated) ? 2 : 1;
  }
  if (shape.vectors_per_item != 1) return 1;
  if (of.gated || vectors > kSmallBlock) return 2;
  if (vectors > 256) {
    const bool gains = of.centred || (of.dtype_size == 2 && rows < kManyByThree);
    return vectors <= 288 && of.dtype_size < 8 && gains ? 4 : 3;
  }
  return of.centred && of.dtype_size < 8 && vectors > 160 && vectors <= 192 ? 3 : 2;
}

// As many blocks as 128 multiprocessors hold. Clusters find fewer places: 30 of 4 and 14 of 8
// blocks fit a H200. For both shapes of a width: the bits of dweight do not depend on alignment.
// Each thread group works for one head.
inline int persistent_partials(std::int64_t rows, const GradientRows& of, int groups,
                               std::int64_t heads) {
  const std::int64_t vectors = of.vectors;
  const PersistentShape shape = persistent_shape(of, true);
  static constexpr int kClusters[] = {128, 64, 28, 14, 7};
  int partial_rows = 128;
  for (int i = 1; (1 << i) <= shape.blocks_per_row; ++i) partial_rows = kClusters[i];
  int together = blocks_together(rows, of, shape);
  const std::int64_t rows_of_head = rows / heads;
  // Of a group. Two sums of three blocks on a multiprocessor are not worth it for two or three rows
  // (H100, LayerNorm bfloat16 768 x 2049 22.4 us, by half the blocks 15.1; H200 1440 x 2304 by two
  // blocks 15.3, 17.5; but 1512 x 1536 by two blocks with three rows 12.0, by half of them 13.9).
  const int least_beyond_two = of.centred ? 4 : 2;
  const int least = together > 2 && vectors > 256 ? least_beyond_two : 2;
  while (together > 2 && rows < std::int64_t{partial_rows} * together * groups * least_beyond_two) {
    --together;
  }
  partial_rows *= together;
  std::int64_t of_head = std::max<std::int64_t>(1, partial_rows / heads);
  const std::int64_t sums_bytes =
      heads * vectors * kVector / of.dtype_size * (of.dtype_size == 8 ? 8 : 4);
  while (of_head > 1 && of_head * groups * least > rows_of_head) {
    if (of_head * groups < 2 * rows_of_head && of_head * sums_bytes <= few_sums(of)) break;
    of_head = (of_head + 1) / 2;
  }
  return static_cast<int>(of_head * heads);
}

// Whether one block works for two that would share a multiprocessor and leaves half as many partial
// sums (H200, bfloat16, us, 16384, 4096 and 2048 x 4096: RMSNorm 100.9 to 99.5, 30.0 to 28.8, 17.9
// to 16.8, LayerNorm 100.5 to 99.7, 31.7 to 30.6, 20.6 to 19.6, with a residual 129.0 to
// 128.2, 36.8 to 36.4, 21.1 to 21.0; float32 16384 x 2048 98.7 to 98.0). Not LayerNorm of float32
// (97.8 and 98.5) nor two vectors in a thread (8192 x 5120 with an offset 65.3 and 65.7).
constexpr bool may_pair(int dtype_size, bool centred) {
  return dtype_size == 2 || (dtype_size == 4 && !centred);
}
inline bool pairs_sums(const GradientRows& of, std::int64_t heads) {
  return of.vectors > kSmallBlock && of.vectors <= kPersistentBlock && !of.gated && heads == 1 &&
         may_pair(of.dtype_size, of.centred);
}

// Of the ring of unaligned rows, where a group of threads has one block more than vectors.
constexpr int unaligned_ring_bytes(int vectors_per_item, int lanes, int threads) {
  return kUnalignedRing * (threads / lanes) * 2 * (vectors_per_item * lanes + 1) * kVector;
}

inline RmsNormBackwardConfig persistent_config(std::int64_t rows, const GradientRows& of, bool ring,
                                               std::int64_t heads, bool added,
                                               bool low_register_pressure) {
  const std::int64_t vectors = of.vectors;
  const PersistentShape shape = persistent_shape(of, ring, low_register_pressure);
  RmsNormBackwardConfig config{};
  config.form = GradientForm::kPersistent;
  config.vectors_per_item = shape.vectors_per_item;
  config.blocks_per_row = shape.blocks_per_row;
  config.ring = shape.ring;
  config.lanes = 1;
  if (vectors <= 32) {
    while (config.lanes < vectors) config.lanes *= 2;
    config.ring = 0;
  } else {
    config.lanes = static_cast<int>(
        ceil_div(vectors, std::int64_t{32} * shape.vectors_per_item * shape.blocks_per_row) * 32);
  }
  const int groups = std::max(1, kPersistentBlock / config.lanes);
  config.threads = groups * config.lanes;
  const bool fused_input =
      of.gated ||
      (added && rings_dsum(shape.vectors_per_item, shape.blocks_per_row > 1, of.dtype_size));
  config.shared_bytes =
      config.ring * shape.vectors_per_item * config.threads * (fused_input ? 3 : 2) * kVector;
  if (config.ring > 0 && !of.has_bias_or_gate()) {
    config.shared_bytes +=
        ring_offset(shape.vectors_per_item, shape.blocks_per_row > 1, kPersistentBlock);
  }
  config.partial_rows = persistent_partials(rows, of, groups, heads);
  config.paired = pairs_sums(of, heads) && config.partial_rows % 2 == 0;
  return config;
}

// Blocks of rows, in the tree of the persistent form (gradient_team.cuh): two vectors per thread.
// In clusters of 8 at most: with 16 compute-sanitizer's synccheck ends in an illegal address, which
// is not understood (plain runs and memcheck are right).
inline RmsNormConfig gradient_rows_config(std::int64_t rows, std::int64_t cols, int dtype_size,
                                          int max_cluster) {
  const std::int64_t vectors = ceil_div(cols, kVector / dtype_size);
  RmsNormConfig config{};
  if (vectors <= 64) {
    config = rms_norm_config(rows, cols, dtype_size, 1);
    config.overlap_launch = true;
    return config;
  }
  const std::int64_t block = kGradientVectorsPerItem * kPersistentBlock;
  config.vectors_per_item = kGradientVectorsPerItem;
  config.items_per_thread = 1;
  config.max_warps = kPersistentBlock / 32;
  config.groups = 1;
  config.segments_per_group = 1;
  if (vectors <= kMaxGroups * block) {
    while (config.groups * block < vectors) config.groups *= 2;
  } else {
    config.groups = kStreamedGroups;
    config.segments_per_group = static_cast<int>(ceil_div(vectors, config.groups * block));
  }
  config.threads =
      virtual_threads(ceil_div(vectors, std::int64_t{config.groups} * config.segments_per_group),
                      config.vectors_per_item, 1);
  config.lanes = config.threads;
  config.blocks_per_row = std::min({config.groups, max_cluster, 8});
  const bool held = config.segments_per_group == 1 && config.blocks_per_row == config.groups;
  config.form = !held                ? RowForm::kStreamed
                : config.groups == 1 ? RowForm::kBlock
                                     : RowForm::kCluster;
  config.overlap_launch = true;
  return config;
}

// rows, cols >= 1; dtype_size: bytes of an element of x; sums: dweight or dbias is wanted; ring:
// aligned rows, and room for them; max_cluster: the largest cluster that the GPU takes, 1 for none;
// heads: of the weight, a divisor of rows; added: there is a dsum; low register pressure: blocks
// have room for a ring of four vectors a thread, the tree is the same without.
inline RmsNormBackwardConfig rms_norm_backward_config(std::int64_t rows, std::int64_t cols,
                                                      int dtype_size, bool sums, bool ring,
                                                      int max_cluster, bool centred = false,
                                                      std::int64_t heads = 1, bool gated = false,
                                                      bool added = false,
                                                      bool low_register_pressure = true) {
  const GradientRows of = gradient_rows(cols, dtype_size, centred, gated);
  const bool is_specialised =
      sums ? block_specialised_gradient(rows, of) : rows_alone_in_blocks(rows, cols, of);
  if (!is_specialised) {
    // Whether the GPU has the clusters of rows without a ring decides for all of a width.
    if (persistent_shape(of, false).blocks_per_row <= max_cluster) {
      return persistent_config(rows, of, ring, heads, added, low_register_pressure);
    }
  }
  RmsNormBackwardConfig config{};
  config.form = GradientForm::kSpecialised;
  config.rows = gradient_rows_config(rows, cols, dtype_size, max_cluster);
  config.threads = config.rows.threads;
  config.lanes = config.rows.lanes;
  config.blocks_per_row = config.rows.blocks_per_row;
  if (sums) {
    config.column_blocks =
        ceil_div(heads * ceil_div(of.vectors, column_segment(of.vectors)), config.blocks_per_row) *
        config.blocks_per_row;
  }
  return config;
}

// Rows of partial sums of dweight, or of dweight and dbias: what the workspace has to hold.
inline std::int64_t rms_norm_backward_partials(std::int64_t rows, std::int64_t cols, int dtype_size,
                                               bool centred = false, std::int64_t heads = 1,
                                               bool gated = false) {
  const GradientRows of = gradient_rows(cols, dtype_size, centred, gated);
  if (block_specialised_gradient(rows, of)) return 0;
  return (centred ? 2 : 1) * persistent_config(rows, of, true, heads, false, true).partial_rows;
}

}  // namespace membound::cuda::tuning
