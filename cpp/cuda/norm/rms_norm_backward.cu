// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "core/dispatch.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/centring.cuh"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/array.hpp"
#include "cuda/row/bulk_config.hpp"
#include "cuda/row/column_sum.cuh"
#include "cuda/row/offset.cuh"
#include "cuda/row/packed_config.hpp"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

template <class T, Access kAccess, Centring kCentring, bool kGated>
void launch_rms_norm_backward(const RmsNormBackwardProblem& problem,
                              const tuning::RmsNormBackwardConfig& config, const RowSplit& split,
                              int device, StreamView stream);

template <class T>
void launch_rms_norm_backward_packed(const RmsNormBackwardProblem& problem,
                                     const tuning::RmsNormBackwardConfig& config,
                                     const tuning::PackedGradientConfig& packed, int device,
                                     StreamView stream);
template <class T>
void launch_rms_norm_backward_bulk(const RmsNormBackwardProblem& problem,
                                   const tuning::RmsNormBackwardConfig& config, int device,
                                   StreamView stream);

// True if the partial sums fill whole cache lines, which can be discarded from L2 after their last
// read, and are large enough for that to pay (LayerNorm 16384 x 4096: 101.6 -> 99.8 us).
template <class Accumulate>
bool discards(const PartialSumsParams<Accumulate>& sums, bool both) {
  constexpr std::int64_t kLeast = 5 << 20;
  const auto on_line = [](const void* data) {
    return reinterpret_cast<std::uintptr_t>(data) % kLineBytes == 0;
  };
  const std::int64_t rows = (both ? 2 : 1) * (sums.paired ? 2 : 1) * sums.rows;
  return sizeof(Accumulate) * kWarpLanes == kLineBytes && sums.cols % kWarpLanes == 0 &&
         rows * sums.cols * std::int64_t{sizeof(Accumulate)} >= kLeast &&
         on_line(sums.sums[0].partials) && (!both || on_line(sums.sums[1].partials));
}

template <class Accumulate>
void launch_column_sums(PartialSumsParams<Accumulate> sums, bool both, int device,
                        StreamView stream) {
  constexpr int kColumns = kVectorBytes / sizeof(Accumulate);
  const auto blocks = tuning::ceil_div(sums.cols, kWarpLanes);
  sums.blocks_each = static_cast<int>(blocks);
  sums.discards = discards(sums, both);
  const auto with = [&]<int kColumnsOfLane>() {
    const auto warps = tuning::ceil_div(sums.rows, kPartialRowsInFlight * kColumnsOfLane);
    const LaunchShape shape{.blocks = both ? 2 * blocks : blocks,
                            .threads = kWarpLanes * static_cast<int>(std::min<std::int64_t>(
                                                        warps, kMaxSumWarps<kColumnsOfLane>))};
    if constexpr (sizeof(Accumulate) == 4) {
      if (sums.paired) {
        return launch<partial_sums_kernel<Accumulate, kColumnsOfLane, true>>(shape, stream, device,
                                                                             sums);
      }
    }
    launch<partial_sums_kernel<Accumulate, kColumnsOfLane, false>>(shape, stream, device, sums);
  };
  // Workspaces start on a vector, so that the shape alone decides the order of the sums.
  if (sums.cols % kColumns == 0 && is_vector_aligned(sums.sums[0].partials) &&
      (!both || is_vector_aligned(sums.sums[1].partials))) {
    with.template operator()<kColumns>();
  } else {
    with.template operator()<1>();
  }
}
template void launch_column_sums(PartialSumsParams<float>, bool, int, StreamView);
template void launch_column_sums(PartialSumsParams<double>, bool, int, StreamView);

template <class Accumulate>
void launch_partial_sums(const RmsNormBackwardParams<Accumulate>& p, int device, StreamView stream,
                         bool pairs_added) {
  if (p.dweight.data == nullptr && p.dbias.data == nullptr) return;
  const bool both = p.dweight.data != nullptr && p.dbias.data != nullptr;
  const PartialSumsParams<Accumulate> sums{
      {p.dweight.data != nullptr ? p.dweight : p.dbias, p.dbias},
      p.groups_of_head / (p.paired ? 2 : 1),
      p.cols * p.heads.count,
      p.cols,
      0,
      p.accumulate,
      p.paired && !pairs_added};
  launch_column_sums(sums, both, device, stream);
}
template void launch_partial_sums<float>(const RmsNormBackwardParams<float>&, int, StreamView,
                                         bool);
template void launch_partial_sums<double>(const RmsNormBackwardParams<double>&, int, StreamView,
                                          bool);

// Aligned kernels count rows in 32 bits, some steps past the last, and those of evenly spaced rows
// the bytes between them.
constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 31;

bool row_strides_fit(const RmsNormBackwardProblem& problem, std::int64_t dtype_size) {
  const auto fits = [&](const auto& rows, std::int64_t size) {
    if (rows.data == nullptr) return true;
    const std::int64_t bytes = inner_stride(rows.layout) * size;
    return -kMostBytes < bytes && bytes < kMostBytes;
  };
  return fits(problem.dy, dtype_size) && fits(problem.x, dtype_size) &&
         fits(problem.dsum, dtype_size) && fits(problem.gate, dtype_size) &&
         fits(problem.dx, dtype_size) && fits(problem.dgate, dtype_size) &&
         fits(problem.mean, sizeof(double)) && fits(problem.rstd, sizeof(double));
}

template <class T>
RowAccess<T> access_of(const RmsNormBackwardProblem& problem) {
  RowAccess<T> access(problem.rows, problem.cols);
  access.add_affine(problem.weight);
  access.add_rows(problem.dy);
  access.add_rows(problem.x);
  access.add_rows(problem.dsum);
  access.add_rows(problem.gate);
  access.add_rows(problem.dx);
  access.add_rows(problem.dgate);
  access.add_statistic(problem.mean.data, problem.mean.layout);
  access.add_statistic(problem.rstd.data, problem.rstd.layout);
  // Only kernels of lane groups count rows in two axes (persistent_group.cuh).
  const bool narrow = problem.cols <= kWarpLanes * kPack<T>;
  if (access.split().extent != 0 && !narrow) access.at_least(Access::kStrided);
  const bool fits = problem.rows < kMostRows && (narrow || row_strides_fit(problem, sizeof(T)));
  if (access.access() == Access::kAligned && !fits) access.at_least(Access::kStrided);
  return access;
}

// True if rows of unit stride may go to the kernels with bulk copies, which have no options and
// need an architecture with clusters.
bool may_use_bulk_copies(const RmsNormBackwardProblem& problem, const RowSplit& split, int device) {
  return problem.is_plain() && problem.gate.data == nullptr && split.extent == 0 &&
         problem.heads <= 1 && max_cluster_size(device) > 1;
}

// Configuration of narrow rows as contiguous tiles; places is 0 if the rows have gaps between them
// or do not fit.
template <class T>
tuning::PackedGradientConfig packed_config(const RmsNormBackwardProblem& problem,
                                           const tuning::RmsNormBackwardConfig& config) {
  const auto packed = [&](const auto& rows) {
    return rows.data == nullptr || rows.layout.strides[0] == problem.cols;
  };
  if (!packed(problem.dy) || !packed(problem.x) || !packed(problem.dsum) || !packed(problem.dx)) {
    return {};
  }
  return tuning::packed_gradient_config(config, problem.cols, sizeof(T),
                                        problem.dsum.data != nullptr ? 3 : 2);
}

// True if rows of unit stride go to the bulk kernel.
template <class T>
bool uses_bulk_kernel(const RmsNormBackwardProblem& problem,
                      const tuning::RmsNormBackwardConfig& config, int device) {
  const auto stride = [](const void* data, const RowLayout& layout) {
    return data != nullptr ? layout.strides[0] : 0;
  };
  const int arrays = problem.dsum.data != nullptr ? 3 : 2;
  return tuning::fits_bulk_kernel(
             config, tuning::ceil_div(problem.cols, kPack<T>), sizeof(T),
             {stride(problem.dy.data, problem.dy.layout), stride(problem.x.data, problem.x.layout),
              stride(problem.dsum.data, problem.dsum.layout),
              stride(problem.dx.data, problem.dx.layout)}) &&
         // Besides the stages a block has 5.2 KiB at most (LayerNorm, four vectors per thread).
         tuning::bulk_bytes(config, arrays) + (6 << 10) <=
             static_cast<int>(max_shared_bytes(device));
}

void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.x.dtype, "rms_norm_backward", [&]<class T>() {
    const int device = current_device();
    RowAccess<T> asked = access_of<T>(problem);
    if (sizeof(T) == 8) asked.at_least(Access::kStrided);  // float64 has no other kernels
    const auto config_of = [&](bool stages, bool may_stage_four = true) {
      const bool sums = problem.dweight.data != nullptr || problem.dbias.data != nullptr;
      return tuning::rms_norm_backward_config(problem.rows, problem.cols, sizeof(T), sums, stages,
                                              max_cluster_size(device), problem.centred,
                                              problem.heads, problem.gate.data != nullptr,
                                              problem.dsum.data != nullptr, may_stage_four);
    };
    const auto fits = [&](const tuning::RmsNormBackwardConfig& config) {
      return config.shared_bytes + tuning::kMaxStaticSharedBytes <=
             static_cast<int>(max_shared_bytes(device));
    };
    // Gated rows are staged only if they have no options.
    const bool stages =
        asked.access() == Access::kAligned &&
        (problem.gate.data == nullptr || (problem.is_plain() && problem.heads == 1));
    tuning::RmsNormBackwardConfig config = config_of(stages);
    if (!fits(config)) config = config_of(stages, false);
    if (!fits(config)) {
      config = config_of(false);
      asked.at_least(Access::kStrided);
    }
    // Among the row blocks only lane groups and strided kernels support heads.
    if (problem.heads > 1 && config.form == tuning::GradientForm::kSpecialised &&
        config.rows.form != tuning::RowForm::kWarp) {
      asked.at_least(Access::kStrided);
      config = config_of(false);
    }
    if constexpr (sizeof(T) < 8) {
      if (asked.access() == Access::kUnaligned &&
          may_use_bulk_copies(problem, asked.split(), device)) {
        const auto packed = packed_config<T>(problem, config);
        if (packed.places > 0)
          return launch_rms_norm_backward_packed<T>(problem, config, packed, device, stream);
        // In the shape of aligned rows, or else with two vectors per thread.
        for (bool as_aligned : {true, false}) {
          const auto bulk = config_of(as_aligned);
          if (uses_bulk_kernel<T>(problem, bulk, device)) {
            return launch_rms_norm_backward_bulk<T>(problem, bulk, device, stream);
          }
        }
      }
    }
    // Other unaligned rows are read element by element, unless they are few.
    if (asked.access() == Access::kUnaligned &&
        (problem.gate.data != nullptr || problem.heads > 1 ||
         config.form != tuning::GradientForm::kSpecialised)) {
      asked.at_least(Access::kStrided);
    }
    const Access access = asked.access();
    const RowSplit split = asked.split();
    const auto go = [&]<Access kAccess, Centring kCentring, bool kGated = false>() {
      launch_rms_norm_backward<T, kAccess, kCentring, kGated>(problem, config, split, device,
                                                              stream);
    };
    if constexpr (sizeof(T) < 8) {
      if (access == Access::kUnaligned)
        return go.template operator()<Access::kUnaligned, Centring::kRunTime>();
      if (access == Access::kAligned) {
        if (problem.centred) return go.template operator()<Access::kAligned, Centring::kAlways>();
        if (problem.gate.data != nullptr)
          return go.template operator()<Access::kAligned, Centring::kNever, true>();
        return go.template operator()<Access::kAligned, Centring::kNever>();
      }
    }
    go.template operator()<Access::kStrided, Centring::kRunTime>();
  });
}

}  // namespace membound::cuda
