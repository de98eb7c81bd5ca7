// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The plan of a forward norm: which kernel runs, with which tile and grid. A pure function of the
// problem and the GPU's limits, unit-tested without a GPU; nothing else chooses. `membound info
// --plan` prints it. Norms over several dtypes have one kernel of their own (rms_norm_generic.cu).
#include <algorithm>
#include <cstdint>

#include "cuda/launch/launch.hpp"
#include "cuda/norm/rms_norm_config.hpp"
#include "cuda/norm/variant.hpp"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/packed_config.hpp"

namespace membound::cuda::tuning {

// The kernels of a variant. The first thirteen are rms_norm_row_kernel by thread group.
enum class NormKernel {
  kLanes,                   // several rows per warp
  kLanesThreeQuarters,      // half of the lanes with two items, in three vectors
  kWarp2,                   // one row per warp, two items per lane
  kWarp2ThreeQuarters,      // in three vectors
  kWarp4Five,               // four items per lane, in five vectors
  kWarp4Six,                // in six vectors
  kBlock,                   // one row per block
  kBlockSmall,              // of at most 384 threads, three blocks per SM
  kBlock2,                  // two items per thread
  kBlock2ThreeQuarters,     // in three vectors
  kBlock4Vectors,           // one item of four vectors per thread, staged in shared memory
  kBlock4VectorsRegisters,  // in registers
  kCluster,                 // one row per cluster, eight vectors per thread
  kStreamed,                // read twice
  kStreamedWide,            // blocks of 16 warps
  kPairs,                   // rms_norm_narrow_kernel: two rows per thread group
  kPairsThreeQuarters,      // a lane has one second vector for both
  kPacked,                  // rms_norm_packed_kernel: tiles of narrow rows without gaps
  kPackedThreeQuarters,
  kBulk,  // rms_norm_bulk_kernel: persistent blocks, rows by bulk copies
  kBulk4Vectors,
  kCount
};

// Vectors of a thread, and whether the kernel may stage them in shared memory (stages_row).
struct NormTile {
  int vectors;
  bool staged;
};
constexpr NormTile tile_of(NormKernel kernel) {
  switch (kernel) {
    case NormKernel::kLanesThreeQuarters:
    case NormKernel::kWarp2ThreeQuarters:
    case NormKernel::kBlock2ThreeQuarters: return {3, false};
    case NormKernel::kWarp2:
    case NormKernel::kBlock2: return {4, true};
    case NormKernel::kBlock4Vectors: return {4, true};
    case NormKernel::kBlock4VectorsRegisters: return {4, false};
    case NormKernel::kWarp4Five: return {5, true};
    case NormKernel::kWarp4Six: return {6, true};
    case NormKernel::kCluster: return {8, true};
    default: return {2, false};
  }
}

// The variants that have kernels. Unaligned rows have those with bulk copies for each centring, and
// others that decide it at run time.
inline constexpr NormVariant kNormVariants[] = {
    {Access::kAligned, FusedInput::kNone, Centring::kNever},
    {Access::kAligned, FusedInput::kResidual, Centring::kNever},
    {Access::kAligned, FusedInput::kNone, Centring::kAlways},
    {Access::kAligned, FusedInput::kResidual, Centring::kAlways},
    {Access::kAligned, FusedInput::kGate, Centring::kNever},
    {Access::kUnaligned, FusedInput::kNone, Centring::kRunTime},
    {Access::kUnaligned, FusedInput::kResidual, Centring::kRunTime},
    {Access::kUnaligned, FusedInput::kGate, Centring::kNever},
    {Access::kUnaligned, FusedInput::kNone, Centring::kNever},
    {Access::kUnaligned, FusedInput::kResidual, Centring::kNever},
    {Access::kUnaligned, FusedInput::kNone, Centring::kAlways},
    {Access::kUnaligned, FusedInput::kResidual, Centring::kAlways},
    {Access::kStrided, FusedInput::kNone, Centring::kRunTime},
    {Access::kStrided, FusedInput::kResidual, Centring::kRunTime},
    {Access::kStrided, FusedInput::kGate, Centring::kNever},
    {Access::kAligned, FusedInput::kNone, Centring::kNever, /*quantised=*/true},
    {Access::kAligned, FusedInput::kResidual, Centring::kNever, /*quantised=*/true},
    {Access::kStrided, FusedInput::kNone, Centring::kNever, /*quantised=*/true},
    {Access::kStrided, FusedInput::kResidual, Centring::kNever, /*quantised=*/true},
};

// Whether a kernel is compiled for aligned rows of a variant. plain: x is the only input and one
// result of its dtype the only output.
constexpr bool has_aligned_kernel(NormKernel kernel, const NormVariant& of, int dtype_size) {
  const bool none = of.fused_input == FusedInput::kNone;
  const bool residual = of.fused_input == FusedInput::kResidual;
  const bool plain = none && !of.quantised, centred = of.centring == Centring::kAlways;
  switch (kernel) {
    // Half of the lanes save instructions (524288 x 192 RMSNorm, bfloat16 on H200: 103 -> 95 us).
    case NormKernel::kLanesThreeQuarters: return plain && dtype_size == (centred ? 4 : 2);
    case NormKernel::kPairs: return plain && centred;
    case NormKernel::kPairsThreeQuarters: return plain && centred && dtype_size == 2;
    case NormKernel::kWarp2: return none;
    case NormKernel::kWarp2ThreeQuarters: return none && (centred || of.quantised);
    case NormKernel::kWarp4Five:
      return centred ? plain && dtype_size == 2 : none || (residual && !of.quantised);
    case NormKernel::kWarp4Six: return none && (centred ? dtype_size == 2 : of.quantised);
    case NormKernel::kBlock2ThreeQuarters: return plain && centred;
    case NormKernel::kBlock2:
      return of.quantised || !is_never_coarsened(plain ? dtype_size : 2, residual, centred);
    // 16-bit rows with a residual take 61 registers, at which only two blocks fit an SM; this
    // kernel is capped for three (9760 x 5376 on H200: 110.5 -> 98.8 us).
    case NormKernel::kBlockSmall: return dtype_size == 2 && residual && !of.quantised && !centred;
    // float32 with a residual is slower in registers (1 x 5120 on H100: 2.5 -> 3.1 us).
    case NormKernel::kBlock4VectorsRegisters: return dtype_size == 2 ? !of.quantised || none : none;
    case NormKernel::kStreamed: return plain;
    case NormKernel::kLanes:
    case NormKernel::kBlock:
    case NormKernel::kBlock4Vectors:
    case NormKernel::kCluster: return true;
    default: return false;
  }
}

// The same for all rows. float64 has strided kernels alone. Quantised strided rows keep a row of
// one block, because a group of columns that share a scale may span vectors.
constexpr bool has_kernel(NormKernel kernel, const NormVariant& of, int dtype_size) {
  const bool wide_block = kernel == NormKernel::kBlock || kernel == NormKernel::kBlock4Vectors;
  const bool streamed = kernel == NormKernel::kStreamed;
  if (of.access == Access::kStrided) {
    if (!of.quantised) return kernel == NormKernel::kLanes || streamed;
    return kernel == NormKernel::kLanes || wide_block || streamed ||
           (kernel == NormKernel::kStreamedWide && dtype_size == 8);
  }
  if (dtype_size == 8) return false;
  if (of.access == Access::kAligned) return has_aligned_kernel(kernel, of, dtype_size);
  if (of.centring == Centring::kRunTime || of.fused_input == FusedInput::kGate)
    return kernel == NormKernel::kLanes || kernel == NormKernel::kBlock;
  return kernel == NormKernel::kPacked || kernel == NormKernel::kBulk ||
         kernel == NormKernel::kBulk4Vectors ||
         (kernel == NormKernel::kPackedThreeQuarters && of.fused_input == FusedInput::kNone);
}

// Translation units, which compile in parallel; cpp/CMakeLists.txt makes one of each.
enum class NormUnit { kPlain, kCentred, kGated, kUnaligned, kStrided, kQuant, kBulk, kPacked };
constexpr NormUnit unit_of(NormKernel kernel, const NormVariant& of) {
  if (kernel >= NormKernel::kBulk) return NormUnit::kBulk;
  if (kernel >= NormKernel::kPacked) return NormUnit::kPacked;
  if (of.quantised) return NormUnit::kQuant;
  if (of.access == Access::kUnaligned) return NormUnit::kUnaligned;
  if (of.fused_input == FusedInput::kGate) return NormUnit::kGated;
  if (of.access == Access::kStrided) return NormUnit::kStrided;
  return of.centring == Centring::kAlways ? NormUnit::kCentred : NormUnit::kPlain;
}

// What the choice depends on.
struct NormFacts {
  std::int64_t rows, cols, heads;
  int dtype_size;
  Access access;     // the best that all arrays support
  bool two_axes;     // rows are counted in two axes
  int narrow_width;  // bytes of the widest vectors that unaligned rows allow, at most 8
  FusedInput fused_input;
  bool centred;
  bool quantised;
  bool common;          // a weight, and a bias if there is one, of x's dtype, and no options
  bool no_gaps;         // rows follow each other without gaps
  bool same_alignment;  // rows of out and residual_out have the same offset from a vector
};

// Those of contiguous arrays with parameters and without options.
inline NormFacts contiguous_norm(std::int64_t rows, std::int64_t cols, int dtype_size) {
  const auto width = static_cast<int>(cols % kVector * dtype_size | 8);
  return {.rows = rows,
          .cols = cols,
          .heads = 1,
          .dtype_size = dtype_size,
          .access = cols * dtype_size % kVector == 0 ? Access::kAligned : Access::kUnaligned,
          .two_axes = false,
          .narrow_width = width & -width,
          .fused_input = FusedInput::kNone,
          .centred = false,
          .quantised = false,
          .common = true,
          .no_gaps = true,
          .same_alignment = true};
}

struct NormPlan {
  NormKernel kernel = NormKernel::kCount;
  NormVariant variant = {};
  RmsNormConfig row = {};  // the threads of a row, and what fixes its reduction tree
  std::int64_t blocks = 0;
  int shared_bytes = 0;  // dynamic
  bool overlap_launch = true;
  int tile_rows = 0, tile_vectors = 0;  // kPacked
};

// One class, so that the facts are not passed from step to step.
class NormPlanner {
 public:
  NormPlanner(const NormFacts& of, const GpuLimits& gpu)
      : of_(of),
        gpu_(gpu),
        vectors_(ceil_div(of.cols, kVector / of.dtype_size)),
        config_(rms_norm_config(of.rows, of.cols, of.dtype_size, gpu.max_cluster)) {}

  NormPlan plan() const {
    const Access access = best_access();
    if (access == Access::kUnaligned) {
      if (!takes_narrow_vectors(config_, of_.rows, vectors_, of_.narrow_width) && may_copy_bulk()) {
        if (const NormPlan plan = packed(); plan.blocks > 0) return plan;
        if (const NormPlan plan = bulk(); plan.blocks > 0) return plan;
      }
      if (config_.vectors_per_item == 2) return rows(access, one_item_per_thread(config_));
    } else if (access == Access::kAligned) {
      return rows(access, aligned_config());
    }
    return rows(Access::kStrided, one_item_per_thread(config_));
  }

 private:
  // Wider rows with heads have no aligned kernels; quantised ones have no unaligned kernels.
  Access best_access() const {
    const bool has_heads = of_.heads > 1 && config_.form != RowForm::kWarp;
    const bool fused = of_.fused_input != FusedInput::kNone;
    if (of_.dtype_size == 8 || of_.access == Access::kStrided) return Access::kStrided;
    if (of_.access == Access::kUnaligned || has_heads)
      return of_.quantised ? Access::kStrided : Access::kUnaligned;
    const bool fits = !uses_strided_kernel(config_, fused || of_.quantised) &&
                      has_room_to_stage(config_, fused, gpu_.shared_bytes);
    return fits ? Access::kAligned : Access::kStrided;
  }

  // Kernels with bulk copies need an architecture with clusters and take no options.
  bool may_copy_bulk() const {
    return !of_.two_axes && of_.heads <= 1 && of_.common && of_.fused_input != FusedInput::kGate &&
           gpu_.max_cluster > 1;
  }

  RmsNormConfig aligned_config() const {
    const bool residual = of_.fused_input == FusedInput::kResidual;
    if (of_.quantised)
      return quantised_config(config_, of_.rows, vectors_, of_.dtype_size, residual);
    if (of_.fused_input == FusedInput::kGate)
      return spread_with_gate(config_, of_.rows, of_.dtype_size);
    return one_warp_per_row(
        spread_over_threads(config_, of_.rows, of_.dtype_size, residual, of_.centred), of_.rows,
        vectors_, of_.dtype_size, residual, of_.centred);
  }

  NormVariant variant(Access access, bool by_centring) const {
    if (of_.fused_input == FusedInput::kGate || of_.quantised)
      return {access, of_.fused_input, Centring::kNever, of_.quantised};
    const Centring compiled = of_.centred ? Centring::kAlways : Centring::kNever;
    return {access, of_.fused_input, by_centring ? compiled : Centring::kRunTime};
  }

  NormPlan rows(Access access, const RmsNormConfig& row) const {
    NormPlan plan{.variant = variant(access, access == Access::kAligned),
                  .row = row,
                  .blocks = row.form == RowForm::kWarp ? ceil_div(of_.rows, row.threads / row.lanes)
                                                       : of_.rows * row.blocks_per_row,
                  .overlap_launch = row.overlap_launch};
    plan.kernel = row_kernel(plan);
    if (plan.kernel == NormKernel::kPairs || plan.kernel == NormKernel::kPairsThreeQuarters)
      plan.blocks = ceil_div(plan.blocks, kPairRows);
    if (plan.kernel == NormKernel::kLanesThreeQuarters)
      plan.blocks = ceil_div(of_.rows, 2 * row.threads / row.lanes);
    if (tile_of(plan.kernel).staged &&
        stages_row(row.vectors_per_item, plan.variant, of_.dtype_size)) {
      const int arrays = of_.fused_input == FusedInput::kNone ? 1 : 2;
      plan.shared_bytes = arrays * kVector * row.threads * tile_of(plan.kernel).vectors;
    }
    return plan;
  }

  NormKernel row_kernel(const NormPlan& plan) const {
    const RmsNormConfig& row = plan.row;
    if (row.form == RowForm::kWarp) return warp_kernel(plan);
    if (plan.variant.access == Access::kUnaligned) return NormKernel::kBlock;
    const bool strided = plan.variant.access == Access::kStrided;
    if (strided && !of_.quantised) return NormKernel::kStreamed;
    if (row.form == RowForm::kBlock) return block_kernel(plan);
    if (row.form == RowForm::kCluster && !strided) return NormKernel::kCluster;
    return row.max_warps == 8 ? NormKernel::kStreamed : NormKernel::kStreamedWide;
  }

  NormKernel warp_kernel(const NormPlan& plan) const {
    const auto has = [&](NormKernel kernel) {
      return has_kernel(kernel, plan.variant, of_.dtype_size);
    };
    const RmsNormConfig& row = plan.row;
    const bool three_quarters =
        is_three_quarters_full(vectors_, row.lanes * std::max(1, row.items_per_thread));
    if (row.items_per_thread == 4)
      return takes_five_vectors(vectors_) ? NormKernel::kWarp4Five : NormKernel::kWarp4Six;
    if (row.items_per_thread == 2) {
      const bool three = three_quarters && has(NormKernel::kWarp2ThreeQuarters);
      return three ? NormKernel::kWarp2ThreeQuarters : NormKernel::kWarp2;
    }
    if (!is_many_narrow(row, plan.blocks)) return NormKernel::kLanes;
    if (of_.common && of_.heads == 1 && has(NormKernel::kPairs)) {
      if (three_quarters && has(NormKernel::kPairsThreeQuarters))
        return NormKernel::kPairsThreeQuarters;
      const bool fills = vectors_ == row.lanes * row.vectors_per_item;
      if (!three_quarters && (of_.dtype_size == 2 || fills)) return NormKernel::kPairs;
    }
    return three_quarters && has(NormKernel::kLanesThreeQuarters) ? NormKernel::kLanesThreeQuarters
                                                                  : NormKernel::kLanes;
  }

  NormKernel block_kernel(const NormPlan& plan) const {
    const auto has = [&](NormKernel kernel) {
      return has_kernel(kernel, plan.variant, of_.dtype_size);
    };
    const RmsNormConfig& row = plan.row;
    if (row.vectors_per_item == 4) {
      const bool low_pressure =
          of_.dtype_size == 4 || (plan.variant.centring == Centring::kNever &&
                                  of_.fused_input == FusedInput::kNone && !of_.quantised);
      const bool few = has(NormKernel::kBlock4VectorsRegisters) &&
                       holds_few_in_registers(row, of_.rows, gpu_.multiprocessors, low_pressure);
      return few ? NormKernel::kBlock4VectorsRegisters : NormKernel::kBlock4Vectors;
    }
    if (row.items_per_thread == 2) {
      const bool three = has(NormKernel::kBlock2ThreeQuarters) && is_half_block(row) &&
                         is_three_quarters_full(vectors_, 2 * row.threads);
      return three ? NormKernel::kBlock2ThreeQuarters : NormKernel::kBlock2;
    }
    const bool small =
        has(NormKernel::kBlockSmall) && row.threads > 256 && row.threads <= kSmallBlock;
    return small ? NormKernel::kBlockSmall : NormKernel::kBlock;
  }

  // Narrow rows without gaps, as tiles; no blocks if they do not fit.
  NormPlan packed() const {
    const int arrays = of_.fused_input == FusedInput::kNone ? 1 : 2;
    if (!of_.no_gaps) return {};
    const PackedConfig tile = packed_config(of_.rows, of_.cols, config_, of_.dtype_size, arrays);
    const bool three = arrays == 1 && is_three_quarters_full(vectors_, config_.lanes);
    return {.kernel = three ? NormKernel::kPackedThreeQuarters : NormKernel::kPacked,
            .variant = variant(Access::kUnaligned, true),
            .row = config_,
            .blocks = tile.blocks,
            .shared_bytes = tile.bytes,
            .overlap_launch = config_.overlap_launch,
            .tile_rows = tile.rows,
            .tile_vectors = tile.tile_vectors};
  }

  // Persistent blocks, by the aligned span of out; no blocks if there are too few rows.
  NormPlan bulk() const {
    const bool adds = of_.fused_input == FusedInput::kResidual;
    if (adds && !of_.same_alignment) return {};
    const BulkConfig bulk =
        bulk_config(of_.rows, config_, of_.dtype_size, adds ? 2 : 1, of_.centred ? 2 : 1,
                    gpu_.multiprocessors, gpu_.shared_bytes);
    const bool four = bulk.vectors_per_item == 4;
    return {.kernel = four ? NormKernel::kBulk4Vectors : NormKernel::kBulk,
            .variant = variant(Access::kUnaligned, true),
            .row = one_item_per_thread(config_),
            .blocks = bulk.blocks,
            .shared_bytes = bulk.bytes};
  }

  const NormFacts& of_;
  const GpuLimits& gpu_;
  const std::int64_t vectors_;
  const RmsNormConfig config_;  // of aligned rows without options
};

inline NormPlan norm_plan(const NormFacts& of, const GpuLimits& gpu) {
  return NormPlanner(of, gpu).plan();
}

}  // namespace membound::cuda::tuning
