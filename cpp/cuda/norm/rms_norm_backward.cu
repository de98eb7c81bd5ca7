// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "core/dispatch.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/norm/gradient_plan.hpp"
#include "cuda/norm/rms_norm_backward_row.cuh"
#include "cuda/row/array.hpp"
#include "cuda/row/column_sum.cuh"
#include "cuda/row/offset.cuh"
#include "ops/rms_norm_backward.hpp"

namespace membound::cuda {

using tuning::GradientFacts;
using tuning::GradientPlan;
using tuning::GradientUnit;

template <GradientUnit kUnit>
void launch_gradient(const GradientPlan& plan, const RmsNormBackwardProblem& problem,
                     const RowSplit& split, int device, StreamView stream);

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

template <class T>
GradientFacts facts_of(const RmsNormBackwardProblem& problem, const RowAccess<T>& access) {
  const auto was_read = [&](const void* written) {
    return written != nullptr && (written == problem.dy.data || written == problem.x.data ||
                                  written == problem.gate.data);
  };
  const bool two_axes = access.split().extent != 0;
  GradientFacts facts{
      .rows = problem.rows,
      .cols = problem.cols,
      .heads = problem.heads,
      .dtype_size = sizeof(T),
      .access = access.access(),
      .two_axes = two_axes,
      .centred = problem.centred,
      .gated = problem.gate.data != nullptr,
      .adds = problem.dsum.data != nullptr,
      .sums = problem.dweight.data != nullptr || problem.dbias.data != nullptr,
      .wants_rows = problem.dx.data != nullptr || problem.dgate.data != nullptr,
      .common = problem.is_common(),
      .plain = problem.is_plain(),
      .evenly_spaced = !two_axes && problem.heads == 1 && row_strides_fit(problem, sizeof(T)),
      .no_gaps = true,
      .overwrites = was_read(problem.dx.data) || was_read(problem.dgate.data)};
  int at = 0;
  const auto look_at = [&](const auto& rows) {
    const std::int64_t stride = rows.data != nullptr ? rows.layout.strides[0] : 0;
    if (rows.data != nullptr && stride != problem.cols) facts.no_gaps = false;
    facts.row_strides[at++] = stride;
  };
  look_at(problem.dy);
  look_at(problem.x);
  look_at(problem.dsum);
  look_at(problem.dx);
  return facts;
}

auto* launch_of(const GradientPlan& plan) {
  switch (tuning::unit_of(plan.kernel, plan.variant)) {
    case GradientUnit::kPlain: return &launch_gradient<GradientUnit::kPlain>;
    case GradientUnit::kCentred: return &launch_gradient<GradientUnit::kCentred>;
    case GradientUnit::kGated: return &launch_gradient<GradientUnit::kGated>;
    case GradientUnit::kUnaligned: return &launch_gradient<GradientUnit::kUnaligned>;
    case GradientUnit::kStrided: return &launch_gradient<GradientUnit::kStrided>;
    case GradientUnit::kBulk: return &launch_gradient<GradientUnit::kBulk>;
    default: return &launch_gradient<GradientUnit::kPacked>;
  }
}

void rms_norm_backward(const RmsNormBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.x.dtype, "rms_norm_backward", [&]<class T>() {
    const int device = current_device();
    RowAccess<T> access = access_of<T>(problem);
    const GradientPlan plan = tuning::gradient_plan(facts_of(problem, access), limits_of(device));
    access.at_least(plan.variant.access);
    launch_of(plan)(plan, problem, access.split(), device, stream);
  });
}

}  // namespace membound::cuda
