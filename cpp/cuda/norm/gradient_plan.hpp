// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The plan of a norm's gradient: which kernel runs, with which thread group and grid. A pure
// function of the problem and the GPU's limits, unit-tested without a GPU; nothing else chooses.
// `membound info --plan` prints it. Gradients over several dtypes have one kernel of their own
// (rms_norm_backward_generic.cu).
#include <algorithm>
#include <cstdint>

#include "cuda/norm/plan.hpp"
#include "cuda/norm/rms_norm_backward_config.hpp"
#include "cuda/norm/variant.hpp"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/packed_config.hpp"

namespace membound::cuda::tuning {

// The kernels of a variant, by thread group. The number is of vectors per thread.
enum class GradientKernel {
  // rms_norm_backward_specialised_kernel: column blocks and row blocks in one launch
  kWarpRows,
  kBlockRows,
  kWideRows,  // columns staged in shared memory
  kClusterRows,
  kStreamedRows,  // rms_norm_backward_streamed_kernel: rows are read twice
  // rms_norm_backward_persistent_kernel
  kLanes,      // several rows per warp
  kLanesEven,  // evenly spaced rows
  kLanesOf2,   // one lane does the work of two
  kLanesOf2Even,
  kLanesOf4,  // of four
  kLanesOf4Even,
  kRegisters1,  // the next row in registers
  kRegisters2,
  kRegisters2Cluster,
  kStaged1Small,  // the next rows in shared memory; at most 384 threads
  kStaged1,
  kStaged2Small,  // two blocks per SM
  kStaged2,
  kStaged4,
  kStaged2Cluster,
  kStaged2ClusterSmall,
  kStaged4Cluster,
  kStaged4ClusterSmall,
  // rms_norm_backward_bulk_kernel: unaligned rows by bulk copies
  kBulk1Small,
  kBulk1,
  kBulk2Small,
  kBulk2,
  kBulk4Small,
  kBulk4,
  kBulk2Cluster,
  kPacked,  // rms_norm_backward_packed_kernel: tiles of narrow rows without gaps
  kCount
};

inline constexpr GradientVariant kGradientVariants[] = {
    {Access::kAligned, Centring::kNever, Form::kPlain},
    {Access::kAligned, Centring::kNever, Form::kPlainRounded},
    {Access::kAligned, Centring::kNever, Form::kPlainAdd},
    {Access::kAligned, Centring::kNever, Form::kGeneral},
    {Access::kAligned, Centring::kAlways, Form::kPlain},
    {Access::kAligned, Centring::kAlways, Form::kPlainRounded},
    {Access::kAligned, Centring::kAlways, Form::kPlainAdd},
    {Access::kAligned, Centring::kAlways, Form::kGeneral},
    {Access::kAligned, Centring::kNever, Form::kPlainGated},
    {Access::kAligned, Centring::kNever, Form::kGated},
    {Access::kUnaligned, Centring::kNever, Form::kPlain},
    {Access::kUnaligned, Centring::kNever, Form::kPlainAdd},
    {Access::kUnaligned, Centring::kAlways, Form::kPlain},
    {Access::kUnaligned, Centring::kAlways, Form::kPlainAdd},
    {Access::kUnaligned, Centring::kRunTime, Form::kGeneral},
    {Access::kStrided, Centring::kRunTime, Form::kGeneral},
};

constexpr bool is_specialised(GradientKernel kernel) {
  return kernel <= GradientKernel::kStreamedRows;
}
constexpr bool is_persistent(GradientKernel kernel) {
  return kernel > GradientKernel::kStreamedRows && kernel < GradientKernel::kBulk1Small;
}
constexpr bool is_staged_cluster(GradientKernel kernel) {
  return kernel >= GradientKernel::kStaged2Cluster &&
         kernel <= GradientKernel::kStaged4ClusterSmall;
}
constexpr bool is_bulk(GradientKernel kernel) {
  return kernel >= GradientKernel::kBulk1Small && kernel < GradientKernel::kPacked;
}

// Whether kPlain includes an offset of the weight, so that it needs no kPlainRounded.
constexpr bool plain_takes_offset(GradientKernel kernel, Centring centring) {
  return centring == Centring::kAlways && !is_staged_cluster(kernel);
}

// Whether a persistent kernel is compiled for aligned rows of a variant.
constexpr bool has_aligned_gradient(GradientKernel kernel, const GradientVariant& of,
                                    int dtype_size) {
  using enum GradientKernel;
  const bool centred = of.centring == Centring::kAlways, gated = of.gated();
  const bool staged = kernel >= kStaged1Small;
  if (gated) {
    switch (kernel) {
      case kLanesOf2:
      case kLanesOf2Even: return of.form == Form::kPlainGated && dtype_size == 2;
      case kLanesOf4:
      case kLanesOf4Even: return of.form == Form::kPlainGated;
      case kLanesEven:
      case kStaged4:
      case kStaged4Cluster:
      case kStaged4ClusterSmall: return false;
      default: return of.form == (staged ? Form::kPlainGated : Form::kGated);
    }
  }
  const bool rounded = of.form != Form::kPlainRounded || !plain_takes_offset(kernel, of.centring);
  switch (kernel) {
    case kLanesEven: return of.form == Form::kPlain || of.form == Form::kPlainAdd;
    case kLanes: return rounded;
    // The forms with more terms spill with the next row in registers (16384 x 4096 bfloat16,
    // rounded: 140 -> 99 us staged); a few rows do not repay the staging.
    case kRegisters1: return !centred && of.form != Form::kPlainRounded;
    case kStaged1:
      return centred ? rounded : of.form == Form::kPlainRounded || of.form == Form::kPlainAdd;
    case kStaged4Cluster: return !centred;
    case kStaged4ClusterSmall: return centred;
    case kStaged1Small:
    case kStaged2Small:
    case kStaged2:
    case kStaged4:
    case kStaged2Cluster: return rounded;
    default: return false;
  }
}

// Whether a kernel is compiled for a variant. float64 has strided kernels alone.
constexpr bool has_kernel(GradientKernel kernel, const GradientVariant& of, int dtype_size) {
  using enum GradientKernel;
  if (dtype_size == 8 && of.access != Access::kStrided) return false;
  if (is_specialised(kernel)) {
    if (kernel == kWideRows) {
      return of.access == Access::kAligned && of.form == Form::kGeneral;
    }
    return of.form == Form::kGeneral || of.form == Form::kGated;
  }
  if (of.access == Access::kStrided) {
    return kernel == kLanes || kernel == kRegisters1 || kernel == kRegisters2 ||
           kernel == kRegisters2Cluster;
  }
  if (of.access == Access::kAligned)
    return is_persistent(kernel) && has_aligned_gradient(kernel, of, dtype_size);
  if (of.form == Form::kGeneral) return false;
  return kernel == kPacked ||
         (is_bulk(kernel) && (kernel != kBulk4Small || of.form == Form::kPlainAdd));
}

// Translation units, which compile in parallel; cpp/CMakeLists.txt makes one of each.
enum class GradientUnit { kPlain, kCentred, kGated, kUnaligned, kStrided, kBulk, kPacked };
constexpr GradientUnit unit_of(GradientKernel kernel, const GradientVariant& of) {
  if (kernel == GradientKernel::kPacked) return GradientUnit::kPacked;
  if (is_bulk(kernel)) return GradientUnit::kBulk;
  if (of.access == Access::kUnaligned) return GradientUnit::kUnaligned;
  if (of.access == Access::kStrided) return GradientUnit::kStrided;
  if (of.gated()) return GradientUnit::kGated;
  return of.centring == Centring::kAlways ? GradientUnit::kCentred : GradientUnit::kPlain;
}

// Threads of a bulk kernel with two vectors per thread, of which an SM holds two blocks. A 16-bit
// dsum leaves no registers for more.
constexpr int bulk_two_vector_threads(int dtype_size, bool adds, bool centred) {
  return dtype_size == 2 && adds ? kTwoVectorThreads
                                 : two_vector_threads(dtype_size, centred, false);
}

// Whether two blocks of a kernel may be paired in one.
constexpr bool has_pairs(GradientKernel kernel, const GradientVariant& of, int dtype_size) {
  return (kernel == GradientKernel::kRegisters1 || kernel == GradientKernel::kStaged1) &&
         of.access == Access::kAligned && of.form < Form::kPlainGated &&
         may_pair(dtype_size, of.centring != Centring::kNever);
}

// What the choice depends on.
struct GradientFacts {
  std::int64_t rows, cols, heads;
  int dtype_size;
  Access access;                // the best that all arrays support
  bool two_axes;                // rows are counted in two axes
  bool centred, gated, adds;    // adds: there is a dsum
  bool sums;                    // dweight or dbias is wanted
  bool wants_rows;              // dx or dgate is wanted
  bool common;                  // a weight of x's dtype, and all gradients of rows are wanted
  bool plain;                   // and no options
  bool evenly_spaced;           // 32 bits hold the bytes between the rows of every array
  bool no_gaps;                 // rows follow each other without gaps
  bool overwrites;              // dx or dgate is written over what the column sums read
  std::int64_t row_strides[4];  // of dy, x, dsum and dx, in elements; 0: there is none
};

// Those of contiguous arrays with a weight, all gradients wanted, and no options.
inline GradientFacts contiguous_gradient(std::int64_t rows, std::int64_t cols, int dtype_size) {
  return {.rows = rows,
          .cols = cols,
          .heads = 1,
          .dtype_size = dtype_size,
          .access = cols * dtype_size % kVector == 0 ? Access::kAligned : Access::kUnaligned,
          .two_axes = false,
          .centred = false,
          .gated = false,
          .adds = false,
          .sums = true,
          .wants_rows = true,
          .common = true,
          .plain = true,
          .evenly_spaced = true,
          .no_gaps = true,
          .overwrites = false,
          .row_strides = {cols, cols, 0, cols}};
}

struct GradientPlan {
  GradientKernel kernel = GradientKernel::kCount;
  GradientVariant variant = {};
  RmsNormBackwardConfig config = {};  // the threads of a row, and what fixes the trees
  std::int64_t blocks = 0;
  int threads = 0;
  int shared_bytes = 0;        // dynamic
  bool columns_first = false;  // kSpecialised: column blocks and row blocks in two launches
  bool adds_pairs = false;     // kPersistent: one block does the work of two
  int tile_vectors = 0;        // kPacked
};

// Rows of a thread group of persistent blocks.
inline std::int64_t rounds_of(const RmsNormBackwardConfig& config, std::int64_t rows,
                              std::int64_t heads) {
  const std::int64_t groups = config.threads / std::max(1, config.lanes);
  return rows / heads / std::max<std::int64_t>(1, config.partial_rows / heads * groups);
}

class GradientPlanner {
  using K = GradientKernel;

 public:
  GradientPlanner(const GradientFacts& of, const GpuLimits& gpu)
      : of_(of), gpu_(gpu), vectors_(ceil_div(of.cols, kVector / of.dtype_size)) {}

  GradientPlan plan() const {
    Access access = of_.dtype_size == 8 ? Access::kStrided : of_.access;
    // Gated rows are staged only if they have no options.
    const bool stages = access == Access::kAligned && (!of_.gated || (of_.plain && of_.heads == 1));
    RmsNormBackwardConfig config = config_of(stages);
    if (!has_room(config)) config = config_of(stages, false);
    const bool specialised = config.form == GradientForm::kSpecialised;
    // Among the row blocks only lane groups and strided kernels support heads.
    if (!has_room(config) || (of_.heads > 1 && specialised && config.rows.form != RowForm::kWarp)) {
      config = config_of(false);
      access = Access::kStrided;
    }
    if (access == Access::kUnaligned && may_copy_bulk()) {
      if (const GradientPlan plan = packed(config); plan.blocks > 0) return plan;
      // In the shape of aligned rows, or else with two vectors per thread.
      for (bool as_aligned : {true, false}) {
        if (const GradientPlan plan = bulk(config_of(as_aligned)); plan.blocks > 0) return plan;
      }
    }
    // Other unaligned rows are read element by element, unless they are few.
    if (access == Access::kUnaligned &&
        (of_.gated || of_.heads > 1 || config.form != GradientForm::kSpecialised)) {
      access = Access::kStrided;
    }
    return config.form == GradientForm::kSpecialised ? row_blocks(access, config)
                                                     : persistent(access, config);
  }

 private:
  RmsNormBackwardConfig config_of(bool stages, bool may_stage_four = true) const {
    return rms_norm_backward_config(of_.rows, of_.cols, of_.dtype_size, of_.sums, stages,
                                    gpu_.max_cluster, of_.centred, of_.heads, of_.gated, of_.adds,
                                    may_stage_four);
  }
  bool has_room(const RmsNormBackwardConfig& config) const {
    return config.shared_bytes + kMaxStaticSharedBytes <= gpu_.shared_bytes;
  }
  // Kernels with bulk copies have no options and need an architecture with clusters.
  bool may_copy_bulk() const {
    return of_.plain && !of_.gated && !of_.two_axes && of_.heads <= 1 && gpu_.max_cluster > 1;
  }
  GradientVariant variant(Access access, Form form) const {
    const Centring compiled = of_.centred ? Centring::kAlways : Centring::kNever;
    const bool run_time =
        access == Access::kStrided || (access == Access::kUnaligned && form == Form::kGeneral);
    return {access, run_time ? Centring::kRunTime : compiled, form};
  }
  Form form_with_options(Access access) const {
    return of_.gated && access == Access::kAligned ? Form::kGated : Form::kGeneral;
  }

  // Column blocks and row blocks.
  GradientPlan row_blocks(Access access, const RmsNormBackwardConfig& config) const {
    GradientPlan plan{.variant = variant(access, form_with_options(access)),
                      .config = config,
                      .threads = config.threads};
    switch (config.rows.form) {
      case RowForm::kWarp: plan.kernel = K::kWarpRows; break;
      case RowForm::kBlock: plan.kernel = K::kBlockRows; break;
      case RowForm::kCluster: plan.kernel = K::kClusterRows; break;
      case RowForm::kStreamed: plan.kernel = K::kStreamedRows; break;
    }
    const bool has_wide = has_kernel(K::kWideRows, plan.variant, of_.dtype_size);
    if (plan.kernel == K::kBlockRows && has_wide && vectors_ > kNarrowVectors)
      plan.kernel = K::kWideRows;
    if (of_.wants_rows) {
      plan.blocks = config.rows.form == RowForm::kWarp
                        ? ceil_div(of_.rows, config.threads / config.lanes)
                        : of_.rows * config.blocks_per_row;
    }
    plan.columns_first = config.column_blocks > 0 && of_.overwrites;
    if (!plan.columns_first) plan.blocks += config.column_blocks;
    if (config.column_blocks > 0 && stages_columns(plan)) {
      constexpr int kStaticBytes = 8 << 10;  // static bytes, at most; sm_75 has no room left
      const int bytes = column_bytes(config.threads);
      if (bytes + kStaticBytes <= gpu_.shared_bytes) plan.shared_bytes = bytes;
    }
    return plan;
  }
  static bool stages_columns(const GradientPlan& plan) {
    return (plan.kernel == K::kWideRows || plan.kernel == K::kClusterRows) &&
           plan.variant.access == Access::kAligned && !plan.variant.gated();
  }

  GradientPlan persistent(Access access, const RmsNormBackwardConfig& config) const {
    GradientPlan plan{.config = config,
                      .blocks = std::int64_t{config.partial_rows} * config.blocks_per_row,
                      .threads = config.threads,
                      .shared_bytes = config.shared_bytes};
    if (config.lanes <= 32) {
      choose_lanes(plan, access);
    } else {
      plan.kernel = config.stages == 0 ? register_kernel(config) : staged_kernel(config);
      choose_form(plan, access);
    }
    // Half as many partial sums save 1.2 us for each 4 MiB.
    const bool has_room = 2 * plan.shared_bytes + kMaxStaticSharedBytes <= gpu_.shared_bytes;
    if (config.paired && has_room && has_pairs(plan.kernel, plan.variant, of_.dtype_size)) {
      plan.blocks /= 2;
      plan.threads *= 2;
      plan.shared_bytes *= 2;
      plan.adds_pairs = true;
    }
    return plan;
  }

  K register_kernel(const RmsNormBackwardConfig& config) const {
    if (config.blocks_per_row > 1) return K::kRegisters2Cluster;
    return config.vectors_per_item == 2 ? K::kRegisters2 : K::kRegisters1;
  }
  K staged_kernel(const RmsNormBackwardConfig& config) const {
    if (config.blocks_per_row > 1) {
      if (config.vectors_per_item == 4)
        return of_.centred ? K::kStaged4ClusterSmall : K::kStaged4Cluster;
      const bool small = of_.gated && config.threads <= kTwoVectorThreads;
      return small ? K::kStaged2ClusterSmall : K::kStaged2Cluster;
    }
    if (config.vectors_per_item == 4) return K::kStaged4;
    if (config.vectors_per_item == 1)
      return config.threads <= kSmallBlock ? K::kStaged1Small : K::kStaged1;
    const int two_blocks = two_vector_threads(of_.dtype_size, of_.centred, of_.gated);
    return config.threads <= two_blocks ? K::kStaged2Small : K::kStaged2;
  }

  // Kernels of more than a lane group take no heads without options.
  bool is_common(const RmsNormBackwardConfig& config) const {
    return of_.common && (of_.heads == 1 || config.lanes <= 32);
  }
  bool is_plain(const RmsNormBackwardConfig& config) const {
    return is_common(config) && of_.plain;
  }
  // No options and no dsum, as far as the kernel's kPlain tells them apart.
  bool is_plain_alone(const GradientPlan& plan, Centring centring) const {
    return !of_.adds && (plain_takes_offset(plan.kernel, centring) ? is_common(plan.config)
                                                                   : is_plain(plan.config));
  }

  void choose_form(GradientPlan& plan, Access access) const {
    plan.variant = variant(access, form_with_options(access));
    if (access != Access::kAligned) return;
    if (of_.gated) {
      if (plan.kernel >= K::kStaged1Small) plan.variant.form = Form::kPlainGated;
      return;
    }
    const Centring centring = plan.variant.centring;
    const std::int64_t rounds = rounds_of(plan.config, of_.rows, of_.heads);
    const bool may_stage = plan.kernel == K::kRegisters1;
    if (is_plain_alone(plan, centring)) {
      const bool stages = may_stage && stages_plain_rows(plan.config, vectors_, rounds);
      plan.variant.form = stages ? Form::kPlainRounded : Form::kPlain;
    } else if (is_plain(plan.config)) {
      plan.variant.form = Form::kPlainAdd;
    } else if (is_common(plan.config) && !of_.adds) {
      plan.variant.form = Form::kPlainRounded;
    }
    // With the next row in registers these forms spill, and few rows do not repay the staging.
    if (may_stage && (plan.variant.form == Form::kPlainRounded ||
                      (plan.variant.form == Form::kPlainAdd && rounds >= kMinRowsForStages))) {
      plan.kernel = K::kStaged1;
      plan.shared_bytes = 2 * 2 * kVector * plan.threads;
    }
  }

  void choose_lanes(GradientPlan& plan, Access access) const {
    plan.kernel = K::kLanes;
    choose_form(plan, access);
    if (access != Access::kAligned) return;
    const int lanes = plan.config.lanes;
    const bool plain = is_plain(plan.config), even = of_.evenly_spaced;
    if (!of_.gated) {
      if (even && (plain || is_plain_alone(plan, plan.variant.centring)))
        plan.kernel = K::kLanesEven;
    } else if (plain && coarsens_four_lanes(vectors_, lanes)) {
      plan.kernel = even ? K::kLanesOf4Even : K::kLanesOf4;
    } else if (plain && of_.dtype_size == 2 && lanes >= kFewCoarsenedLanes) {
      plan.kernel = even ? K::kLanesOf2Even : K::kLanesOf2;
    }
    if (!of_.gated || plan.kernel == K::kLanes) return;
    const bool four = plan.kernel == K::kLanesOf4 || plan.kernel == K::kLanesOf4Even;
    plan.variant.form = Form::kPlainGated;
    plan.threads = kPersistentBlock / (four ? 4 : 2);
  }

  // Narrow rows without gaps, as tiles; no blocks if they do not fit.
  GradientPlan packed(const RmsNormBackwardConfig& config) const {
    if (!of_.no_gaps) return {};
    const auto tile = packed_gradient_config(config, of_.cols, of_.dtype_size, of_.adds ? 3 : 2);
    if (tile.tile_vectors == 0) return {};
    return {.kernel = K::kPacked,
            .variant = variant(Access::kUnaligned, of_.adds ? Form::kPlainAdd : Form::kPlain),
            .config = config,
            .blocks = config.partial_rows,
            .threads = config.threads,
            .shared_bytes = tile.bytes,
            .tile_vectors = tile.tile_vectors};
  }

  // Rows by bulk copies; no blocks if they do not fit.
  GradientPlan bulk(const RmsNormBackwardConfig& config) const {
    const auto& strides = of_.row_strides;
    const int bytes = bulk_bytes(config, of_.adds ? 3 : 2);
    // Besides the stages a block has 5.2 KiB at most (LayerNorm, four vectors per thread).
    if (!fits_bulk_kernel(config, vectors_, of_.dtype_size,
                          {strides[0], strides[1], strides[2], strides[3]}) ||
        bytes + (6 << 10) > gpu_.shared_bytes) {
      return {};
    }
    return {.kernel = bulk_kernel(config),
            .variant = variant(Access::kUnaligned, of_.adds ? Form::kPlainAdd : Form::kPlain),
            .config = config,
            .blocks = std::int64_t{config.partial_rows} * config.blocks_per_row,
            .threads = config.threads,
            .shared_bytes = bytes};
  }
  K bulk_kernel(const RmsNormBackwardConfig& config) const {
    if (config.blocks_per_row > 1) return K::kBulk2Cluster;
    if (config.vectors_per_item == 4) {
      const bool small = of_.adds && config.threads <= kThreeStageThreads;
      return small ? K::kBulk4Small : K::kBulk4;
    }
    if (config.vectors_per_item == 1)
      return config.threads <= kSmallBlock ? K::kBulk1Small : K::kBulk1;
    const int two_blocks = bulk_two_vector_threads(of_.dtype_size, of_.adds, of_.centred);
    return config.threads <= two_blocks ? K::kBulk2Small : K::kBulk2;
  }

  const GradientFacts& of_;
  const GpuLimits& gpu_;
  const std::int64_t vectors_;
};

inline GradientPlan gradient_plan(const GradientFacts& of, const GpuLimits& gpu) {
  return GradientPlanner(of, gpu).plan();
}

}  // namespace membound::cuda::tuning
