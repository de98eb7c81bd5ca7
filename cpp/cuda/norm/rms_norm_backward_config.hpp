// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Launch configuration of rms_norm_backward: a pure function, unit-tested without a GPU. What fixes
// the reduction tree of dweight (form, partial_rows, threads) depends on rows, cols and dtype
// alone.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "cuda/norm/rms_norm_config.hpp"

namespace membound::cuda::tuning {

// The form of a norm's gradient, chosen by rows, cols and dtype alone.

enum class GradientForm {
  kSpecialised,  // column blocks and row blocks in one launch; no partial sums
  kPersistent,   // dx and dweight from one read; a second kernel adds up partial sums
};

inline constexpr int kPersistentBlock = 512;
// Up to 16 blocks of 512 threads with two vectors each.
constexpr bool has_persistent_form(std::int64_t vectors) {
  return vectors <= kMaxGroups * 2 * kPersistentBlock;
}
// A gradient's rows: what its form depends on, whatever their alignment.
struct GradientRows {
  std::int64_t vectors;
  int dtype_size;
  bool centred;
  bool gated;
  bool whole;  // the last vector is full; if not, rows are not all 16-byte aligned

  bool has_bias_or_gate() const { return centred || gated; }
  // True if most rows of this width go to the unaligned kernels.
  bool unaligned() const { return !whole && dtype_size < 8; }
};
inline GradientRows gradient_rows(std::int64_t cols, int dtype_size, bool centred, bool gated) {
  return {ceil_div(cols, kVector / dtype_size), dtype_size, centred, gated,
          cols * dtype_size % kVector == 0};
}

// Rows up to which the block-specialised form is faster, for RMSNorm and LayerNorm; an entry covers
// rows of up to `vectors` vectors. The form saves the second launch and pays with a second read and
// long column sums (bfloat16 512 x 8192: 10.8 us, persistent 14.2; 384 x 16384: 20.0, persistent
// 17.0).
struct SpecialisedRows {
  std::int64_t vectors;
  std::int64_t norm;
  std::int64_t layer_norm;
};
inline constexpr std::int64_t kAnyVectors = std::numeric_limits<std::int64_t>::max();
inline constexpr SpecialisedRows kSpecialisedOf16Bits[] = {
    {64, 256, 256},   {128, 160, 224},    {160, 208, 384},      {192, 224, 768},
    {256, 448, 896},  {1024, 1024, 1024}, {1280, 640, 768},     {1536, 512, 640},
    {3072, 192, 320}, {4096, 192, 128},   {kAnyVectors, 64, 24}};
inline constexpr SpecialisedRows kSpecialisedOf32Bits[] = {
    {64, 288, 288},   {128, 176, 224},  {160, 208, 384},      {192, 224, 704},
    {256, 304, 832},  {1024, 768, 768}, {1280, 384, 384},     {1536, 320, 320},
    {2048, 128, 128}, {4096, 64, 48},   {kAnyVectors, 16, 16}};
inline constexpr SpecialisedRows kSpecialisedOf64Bits[] = {
    {128, 256, 256}, {640, 512, 512}, {1024, 256, 256}, {2048, 64, 64}, {kAnyVectors, 16, 16}};
// Odd widths, whose rows are mostly unaligned (bfloat16 64 x 301: 3.5 us, persistent 6.1; 384 x
// 301: 12.8, persistent 6.5).
inline constexpr SpecialisedRows kSpecialisedOfUnaligned[] = {
    {32, 112, 128},  {64, 160, 160},  {128, 80, 96},   {768, 224, 256},      {1280, 144, 160},
    {1536, 64, 144}, {2048, 48, 112}, {3072, 32, 192}, {kAnyVectors, 16, 16}};
inline constexpr SpecialisedRows kSpecialisedOfGated[] = {
    {32, 240, 240},  {64, 192, 192},   {128, 112, 112}, {256, 448, 448},
    {640, 384, 384}, {1024, 160, 160}, {4096, 64, 64},  {kAnyVectors, 16, 16}};
inline constexpr std::int64_t kSpecialisedOfUnalignedGated = 64;  // for rows wider than a warp

inline std::int64_t specialised_rows(const GradientRows& of) {
  const auto among = [&](const auto& bounds) {
    const SpecialisedRows* bound = bounds;
    while (of.vectors > bound->vectors) ++bound;
    return of.centred ? bound->layer_norm : bound->norm;
  };
  if (of.gated) {
    const std::int64_t rows = among(kSpecialisedOfGated);
    return of.unaligned() && of.vectors > 32 ? std::min(rows, kSpecialisedOfUnalignedGated) : rows;
  }
  if (of.unaligned()) return among(kSpecialisedOfUnaligned);
  if (of.dtype_size == 2) return among(kSpecialisedOf16Bits);
  return of.dtype_size == 4 ? among(kSpecialisedOf32Bits) : among(kSpecialisedOf64Bits);
}
inline bool block_specialised_gradient(std::int64_t rows, const GradientRows& of) {
  return !has_persistent_form(of.vectors) || rows <= specialised_rows(of);
}

struct RmsNormBackwardConfig {
  GradientForm form;
  int threads;           // per block
  int lanes;             // per row, or per block's part of it
  int vectors_per_item;  // 16-byte vectors of a thread
  int blocks_per_row;    // cluster size
  int partial_rows;      // kPersistent: one of each block or cluster, counted before pairing
  bool paired;           // kPersistent: partial rows are added up in pairs first, in any kernel
  int stages;            // kPersistent: rows staged in shared memory
  int shared_bytes;      // of the stages
  RmsNormConfig rows;    // kSpecialised, and dx alone: the row blocks
  std::int64_t column_blocks;

  bool operator==(const RmsNormBackwardConfig&) const = default;
};

// Vectors of each row that a column block sums: 4 (64 bytes), or 8 in wide rows, whose columns are
// staged in shared memory, kColumnRows rows of a thread at a time. Narrower rows lose by 8: their
// blocks have fewer threads for more rows (bfloat16 1024 x 2048: 7.8 -> 9.3 us).
inline constexpr int kColumnSegment = 4;
inline constexpr int kWideColumnSegment = 8;
inline constexpr int kColumnRows = 4;
// The limit is one for all alignments: the bits of dweight do not depend on alignment.
inline constexpr std::int64_t kNarrowVectors = 640;  // of a row, at most
constexpr int column_segment(std::int64_t vectors) {
  return vectors <= kNarrowVectors ? kColumnSegment : kWideColumnSegment;
}
constexpr int column_bytes(int threads) { return kColumnRows * 2 * threads * kVector; }
inline constexpr int kGradientVectorsPerItem =
    2;  // vectors of a thread that are summed before its warp
// Threads of a block with two vectors per thread, at most, of which an SM holds two instead of one.
// 384 threads leave 80 registers each, in which 16-bit LayerNorm spills; gates and float64 keep
// 320.
inline constexpr int kTwoVectorThreads = 320;
constexpr int two_vector_threads(int dtype_size, bool centred, bool gated) {
  return !gated && dtype_size < 8 && (dtype_size == 4 || !centred) ? 384 : kTwoVectorThreads;
}
inline constexpr int kFourVectorThreads = 384;  // with four vectors per thread: 168 registers each
inline constexpr int kClusterStages = 3;  // rows staged by a cluster, which works on two of them
inline constexpr int kMaxStaticSharedBytes =
    32 << 10;  // shared bytes of a block outside its stages, at most

// Rows of a group from which rows with dsum are staged in shared memory. With dsum and the next row
// both in registers 16 bytes spill; few rows do not repay the staging.
inline constexpr int kMinRowsForStages = 4;  // of a group

// True if rows without options, whose next row fits registers, are staged in shared memory too:
// threads without a vector hide no latency. rounds: rows of a group, few of which do not repay it.
inline constexpr int kMinRowsForPlainStages = 10;
constexpr bool stages_plain_rows(const RmsNormBackwardConfig& config, std::int64_t vectors,
                                 int rounds) {
  return vectors * (config.threads / config.lanes) < kPersistentBlock &&
         rounds >= kMinRowsForPlainStages;
}

// dx alone: bytes of one array up to which row blocks are faster than the persistent form, whose
// sums are dropped. Larger arrays give persistent blocks enough rows for the prefetch to pay.
inline std::int64_t max_row_block_bytes(const GradientRows& of) {
  constexpr std::int64_t kMiB = 1 << 20;
  if (of.unaligned() && of.vectors > 32) return of.gated ? kMiB / 2 : 2 * kMiB;
  if (of.gated) return (of.vectors <= 2 * kTwoVectorThreads ? 8 : 4) * kMiB;
  if (of.vectors > 2 * kPersistentBlock) return 16 * kMiB;
  return (of.centred ? 4 : 8) * kMiB;
}
inline bool dx_alone_in_row_blocks(std::int64_t rows, std::int64_t cols, const GradientRows& of) {
  return !has_persistent_form(of.vectors) || rows * cols * of.dtype_size <= max_row_block_bytes(of);
}

// True if `blocks` blocks with four vectors per thread hold the row, and have the registers and a
// kernel for it.
inline bool fits_four_vectors(const GradientRows& of, int blocks) {
  return !of.gated && of.dtype_size <= 4 && of.vectors <= blocks * 4 * kFourVectorThreads;
}

// Vectors of a thread, blocks of a row and rows staged in shared memory (0: the next row is in
// registers), for aligned rows on GPUs with room for the stages, or for all others. Bias sums or a
// gate need the registers that the next row would take: LayerNorm 16384 x 4096 reaches 64 % of copy
// bandwidth with it in registers and 76 % staged.
struct PersistentShape {
  int vectors_per_item;
  int blocks_per_row;
  int stages;
};
inline PersistentShape persistent_shape(const GradientRows& of, bool stages,
                                        bool may_stage_four = true) {
  const std::int64_t vectors = of.vectors;
  // Up to 256 vectors a prefetch into registers reaches 97 % of copy bandwidth; wider rows gain by
  // stages (bfloat16 16384 x 3072: 83 -> 92 %).
  if (vectors <= kPersistentBlock) {
    return {1, 1,
            stages && (of.has_bias_or_gate() || (vectors > 256 && vectors <= kSmallBlock)) ? 2 : 0};
  }
  // One block per row avoids the exchange of a cluster of two (bfloat16 8192 x 10240: 146 -> 128
  // us). Three stages are no faster.
  const bool four_vectors = stages && may_stage_four;
  if (four_vectors && vectors > 2 * kPersistentBlock && fits_four_vectors(of, 1)) return {4, 1, 2};
  // 28 clusters of four blocks fit the GPU, but 64 of two (LayerNorm 4096 x 20480: 193 -> 133 us).
  if (four_vectors && of.centred && vectors > 4 * kPersistentBlock && fits_four_vectors(of, 2)) {
    return {4, 2, kClusterStages};
  }
  PersistentShape shape{2, 1, stages ? 2 : 0};
  // Clusters sum the next row while the sums of one are in flight (LayerNorm 8192 x 16384: 76 -> 93
  // % of a copy). A single block does not gain.
  if (stages && vectors > 2 * kPersistentBlock) shape.stages = kClusterStages;
  if (stages && !of.has_bias_or_gate() && vectors > 4 * kPersistentBlock)
    shape.vectors_per_item = 4;
  while (std::int64_t{shape.blocks_per_row} * shape.vectors_per_item * kPersistentBlock < vectors) {
    shape.blocks_per_row *= 2;
  }
  return shape;
}

// True if dsum is staged in shared memory too. Loaded with its row, it stalls an SM that has one
// row at a time (bfloat16 8192 x 10240: 193 -> 164 us). More vectors per thread leave no room for
// it.
constexpr bool stages_dsum(int vectors_per_item, bool clusters, int dtype_size) {
  return dtype_size == 2 && vectors_per_item == (clusters ? 2 : 4);
}

// Bytes from a 128-byte line to the first stage. Measured, not understood: RMSNorm 4096 x 24576
// takes 151 us instead of 157 with the same instructions. All other stages lose by an offset.
constexpr int stage_offset(int vectors_per_item, bool clusters, int max_threads) {
  return vectors_per_item == 4 && clusters && max_threads == kPersistentBlock ? 2 * kVector : 0;
}

// True if one lane of narrow gated rows does the work of four, in three vectors. Otherwise one does
// that of two if the group has at least kFewCoarsenedLanes and the dtype 16 bits. Rows without a
// gate wait for memory and lose by either.
constexpr bool coarsens_four_lanes(std::int64_t vectors, int lanes) {
  return lanes >= 8 && is_three_quarters_full(vectors, lanes / 2);
}
inline constexpr int kFewCoarsenedLanes = 4;

// Bytes of partial sums up to which groups may have one row or none: several groups share a block,
// so that two rows for each would leave few blocks (bfloat16 1000 x 65: 8.7 -> 5.2 us).
inline std::int64_t few_partial_sums_bytes(const GradientRows& of) {
  constexpr std::int64_t kKiB = 1 << 10;
  if (of.gated && of.unaligned()) return (of.dtype_size == 2 ? 512 : 256) * kKiB;
  return (of.centred && !of.unaligned() ? 256 : 1024) * kKiB;
}

// Persistent blocks per SM, more of those with few threads, as far as registers allow: RMSNorm of
// 257 to 288 vectors has four, but three from kMinRowsForThreeBlocks rows on. Clusters share an SM
// if they keep to half of its registers (gated bfloat16 4552 x 9216: 203 -> 114 us).
inline constexpr std::int64_t kMinRowsForThreeBlocks = 20480;  // rows
inline int blocks_per_sm(std::int64_t rows, const GradientRows& of, const PersistentShape& shape) {
  const std::int64_t vectors = of.vectors;
  if (shape.blocks_per_row > 1) {
    const bool fits = of.gated || (of.centred && of.dtype_size == 4 && shape.vectors_per_item == 2);
    return fits && ceil_div(vectors, shape.blocks_per_row) <= 2 * kTwoVectorThreads ? 2 : 1;
  }
  if (shape.vectors_per_item == 2) {
    return vectors <= 2 * two_vector_threads(of.dtype_size, of.centred, of.gated) ? 2 : 1;
  }
  if (shape.vectors_per_item != 1) return 1;
  if (of.gated || vectors > kSmallBlock) return 2;
  if (vectors > 256) {
    const bool gains = of.centred || (of.dtype_size == 2 && rows < kMinRowsForThreeBlocks);
    return vectors <= 288 && of.dtype_size < 8 && gains ? 4 : 3;
  }
  return of.centred && of.dtype_size < 8 && vectors > 160 && vectors <= 192 ? 3 : 2;
}

// Partial rows: as many as 128 SMs hold blocks, or clusters, which fit less often (an H200 takes 30
// of 4 blocks and 14 of 8). Aligned and unaligned rows of a width share the result, since the bits
// of dweight do not depend on alignment. Each thread group works for one head.
inline int persistent_partials(std::int64_t rows, const GradientRows& of, int groups,
                               std::int64_t heads) {
  const std::int64_t vectors = of.vectors;
  const PersistentShape shape = persistent_shape(of, true);
  static constexpr int kClusters[] = {128, 64, 28, 14, 7};
  int partial_rows = 128;
  for (int i = 1; (1 << i) <= shape.blocks_per_row; ++i) partial_rows = kClusters[i];
  int together = blocks_per_sm(rows, of, shape);
  const std::int64_t rows_of_head = rows / heads;
  // Rows of a group that repay the partial sums of a third or fourth block per SM (LayerNorm 768 x
  // 2049 with two or three rows: 22.4 -> 15.1 us by half the blocks).
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
    if (of_head * groups < 2 * rows_of_head && of_head * sums_bytes <= few_partial_sums_bytes(of))
      break;
    of_head = (of_head + 1) / 2;
  }
  return static_cast<int>(of_head * heads);
}

// True if one block may do the work of two that would share an SM, which halves the partial sums
// (bfloat16 2048 x 4096: 17.9 -> 16.8 us). Centred float32 and two vectors per thread do not gain.
constexpr bool may_pair(int dtype_size, bool centred) {
  return dtype_size == 2 || (dtype_size == 4 && !centred);
}
inline bool pairs_sums(const GradientRows& of, std::int64_t heads) {
  return of.vectors > kSmallBlock && of.vectors <= kPersistentBlock && !of.gated && heads == 1 &&
         may_pair(of.dtype_size, of.centred);
}

inline RmsNormBackwardConfig persistent_config(std::int64_t rows, const GradientRows& of,
                                               bool stages, std::int64_t heads, bool added,
                                               bool may_stage_four) {
  const std::int64_t vectors = of.vectors;
  const PersistentShape shape = persistent_shape(of, stages, may_stage_four);
  RmsNormBackwardConfig config{};
  config.form = GradientForm::kPersistent;
  config.vectors_per_item = shape.vectors_per_item;
  config.blocks_per_row = shape.blocks_per_row;
  config.stages = shape.stages;
  config.lanes = 1;
  if (vectors <= 32) {
    while (config.lanes < vectors) config.lanes *= 2;
    config.stages = 0;
  } else {
    config.lanes = static_cast<int>(
        ceil_div(vectors, std::int64_t{32} * shape.vectors_per_item * shape.blocks_per_row) * 32);
  }
  const int groups = std::max(1, kPersistentBlock / config.lanes);
  config.threads = groups * config.lanes;
  const bool fused_input =
      of.gated ||
      (added && stages_dsum(shape.vectors_per_item, shape.blocks_per_row > 1, of.dtype_size));
  config.shared_bytes =
      config.stages * shape.vectors_per_item * config.threads * (fused_input ? 3 : 2) * kVector;
  if (config.stages > 0 && !of.has_bias_or_gate()) {
    config.shared_bytes +=
        stage_offset(shape.vectors_per_item, shape.blocks_per_row > 1, kPersistentBlock);
  }
  config.partial_rows = persistent_partials(rows, of, groups, heads);
  config.paired = pairs_sums(of, heads) && config.partial_rows % 2 == 0;
  return config;
}

// Row blocks, which reduce in the tree of the persistent form (GradientBlockThreadGroup): two
// vectors per thread. Clusters have 8 blocks at most: with 16 compute-sanitizer's synccheck ends in
// an illegal address, which is not understood (plain runs and memcheck are right).
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

// rows, cols >= 1; dtype_size: bytes of an element of x; sums: dweight or dbias is wanted; stages:
// rows are aligned and there is room to stage them; max_cluster: the largest cluster of the GPU, 1
// for none; heads: of the weight, a divisor of rows; added: there is a dsum; may_stage_four:
// blocks have room to stage four vectors per thread (the tree is the same without).
inline RmsNormBackwardConfig rms_norm_backward_config(std::int64_t rows, std::int64_t cols,
                                                      int dtype_size, bool sums, bool stages,
                                                      int max_cluster, bool centred = false,
                                                      std::int64_t heads = 1, bool gated = false,
                                                      bool added = false,
                                                      bool may_stage_four = true) {
  const GradientRows of = gradient_rows(cols, dtype_size, centred, gated);
  const bool is_specialised =
      sums ? block_specialised_gradient(rows, of) : dx_alone_in_row_blocks(rows, cols, of);
  if (!is_specialised) {
    // The shape without stages decides, so that all alignments of a width take the same form.
    if (persistent_shape(of, false).blocks_per_row <= max_cluster) {
      return persistent_config(rows, of, stages, heads, added, may_stage_four);
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

// Rows of partial sums of dweight, or of dweight and dbias, that the workspace has to hold.
inline std::int64_t rms_norm_backward_partials(std::int64_t rows, std::int64_t cols, int dtype_size,
                                               bool centred = false, std::int64_t heads = 1,
                                               bool gated = false) {
  const GradientRows of = gradient_rows(cols, dtype_size, centred, gated);
  if (block_specialised_gradient(rows, of)) return 0;
  return (centred ? 2 : 1) * persistent_config(rows, of, true, heads, false, true).partial_rows;
}

}  // namespace membound::cuda::tuning
