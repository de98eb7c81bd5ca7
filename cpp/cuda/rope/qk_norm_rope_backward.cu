// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/rope/qk_norm_rope_backward_lane_kernels.cuh"
#include "cuda/rope/qk_norm_rope_layout.cuh"
#include "ops/qk_norm_rope_backward.hpp"

namespace membound::cuda {

namespace {

template <class T>
bool has_vectors(const QkNormRopeBackwardProblem& problem) {
  const RopeProblem& rope = problem.rope;
  bool all = rotates_in_vectors<T>(rope);
  for (int i = 0; i < rope.count && all; ++i) {
    const HeadGradient& array = problem.arrays[i];
    all = in_vectors<T>(rope, array.x, array.x_strides, rope.arrays[i].heads) &&
          weight_in_vectors<T>(rope, array.weight);
  }
  return all;
}

template <class T, int kElements>
bool is_aligned_to(const QkNormRopeBackwardProblem& problem) {
  const RopeProblem& rope = problem.rope;
  bool all = rope.head_dim % kElements == 0;
  for (int i = 0; i < rope.count && all; ++i) {
    const RopeHeads& array = rope.arrays[i];
    const HeadGradient& gradient = problem.arrays[i];
    all = in_vectors<T, kElements>(rope, array.x, array.x_strides, array.heads) &&
          in_vectors<T, kElements>(rope, array.out, array.out_strides, array.heads) &&
          in_vectors<T, kElements>(rope, gradient.x, gradient.x_strides, array.heads);
  }
  return all;
}

template <class T>
QkNormRopeBackwardParams<accumulate_t<T>> params_of(const QkNormRopeBackwardProblem& problem) {
  using A = accumulate_t<T>;
  const RopeProblem& rope = problem.rope;
  QkNormRopeBackwardParams<A> p{};
  p.rope = rope;
  A* next = static_cast<A*>(problem.workspace);
  for (int i = 0; i < rope.count; ++i) {
    const HeadGradient& array = problem.arrays[i];
    p.arrays[i] = array;
    p.weights[i] = weight_columns<T>(array.weight, problem.weight_offset);
    GroupParts& parts = p.parts[i];
    parts.groups = array.groups;
    parts.rows = array.groups == 0 ? 0 : rope.tokens() * rope.arrays[i].heads / array.groups;
    parts.part_rows = qk_norm_part_rows(parts.rows);
    parts.parts = qk_norm_parts(parts.rows);
    parts.by_groups = divider(parts.groups);
    parts.by_heads = divider(rope.arrays[i].heads);
    if (array.dweight.data == nullptr) continue;
    p.partials[i] = next;
    next += parts.parts * parts.groups * rope.head_dim;
  }
  p.by_seq = divider(rope.seq);
  set_rstd(p.norm, rope.head_dim, problem.eps, A());
  p.round_normed = problem.round_normed;
  return p;
}

void set_slot_rows(GroupParts& parts, const RopeHeads& array, const HeadGradient& gradient,
                   const tuning::QkNormRopeBackwardConfig& config) {
  parts.slot_rows = (parts.part_rows + config.slots - 1) / config.slots;
  parts.dy_step = config.together * array.x_strides.head;
  parts.x_step = config.together * gradient.x_strides.head;
  parts.dx_step = config.together * array.out_strides.head;
  const HeadStatistic& rstd = gradient.rstd;
  parts.rstd_step = rstd.data != nullptr ? config.together * rstd.strides.head : 0;
}

// Reduces the partial sums of one array's dweight.
template <class A>
void sum_parts(const QkNormRopeBackwardProblem& problem, const QkNormRopeBackwardParams<A>& p,
               int array, StreamView stream, int device) {
  const HeadWeightGradient& dweight = problem.arrays[array].dweight;
  const GroupParts& parts = p.parts[array];
  PartialSumsParams<A> sums{};
  sums.sums[0] = {dweight.data, dweight.stride, dweight.dtype, p.partials[array],
                  dweight.head_stride};
  sums.rows = parts.parts;
  sums.cols = parts.groups * p.rope.head_dim;
  sums.cols_of_head = p.rope.head_dim;
  sums.accumulate = problem.accumulate;
  if (sums.cols > 0) launch_column_sums(sums, /*both=*/false, device, stream);
}

}  // namespace

void qk_norm_rope_backward(const QkNormRopeBackwardProblem& problem, StreamView stream) {
  dispatch_floating(problem.rope.dtype, "qk_norm_rope_backward", [&]<class T>() {
    using A = accumulate_t<T>;
    QkNormRopeBackwardParams<A> p = params_of<T>(problem);
    const bool vectors = has_vectors<T>(problem);
    const std::int64_t blocks =
        p.parts[0].groups * p.parts[0].parts + p.parts[1].groups * p.parts[1].parts;
    const tuning::QkNormRopeBackwardConfig config =
        tuning::qk_norm_rope_backward_config(blocks, p.rope.head_dim, sizeof(T), vectors);
    p.lanes = config.lanes;
    p.slots = config.slots;
    p.together = config.together;
    for (int i = 0; i < p.rope.count; ++i) {
      set_slot_rows(p.parts[i], p.rope.arrays[i], p.arrays[i], config);
    }
    p.table_in_vectors = vectors ? table_in_vectors<T>(p.rope) : has_common_table<T>(p.rope);
    const bool lanes =
        !vectors && kHasVectorsKernel<T> && tuning::qk_norm_fits_lanes(p.rope.head_dim, sizeof(T));
    p.warp = tuning::warp_heads(p.rope.head_dim, sizeof(T));
    p.access = vector_access<T>(
        [&](auto elements) { return is_aligned_to<T, decltype(elements)::value>(problem); });
    p.common_weights = true;
    for (int i = 0; i < p.rope.count; ++i) {
      p.common_weights = p.common_weights && is_common_weight<T>(p.rope, problem.arrays[i].weight);
    }
    const LaunchShape shape{
        .blocks = blocks,
        .threads = lanes ? tuning::qk_norm_backward_lane_threads(p.slots, p.warp) : config.threads,
        .overlap_launch = config.overlap_launch};
    const int device = current_device();
    if constexpr (kHasVectorsKernel<T>) {
      if (blocks > 0 && vectors) {
        launch<qk_norm_rope_backward_vectors_kernel<T>>(shape, stream, device, p);
      } else if (blocks > 0 && lanes) {
        launch<qk_norm_rope_backward_lanes_kernel<T>>(shape, stream, device, p);
      }
    }
    if (blocks > 0 && !vectors && !lanes) {
      launch<qk_norm_rope_backward_heads_kernel<A>>(shape, stream, device, p);
    }
    for (int i = 0; i < problem.rope.count; ++i) {
      if (problem.arrays[i].dweight.data != nullptr) sum_parts(problem, p, i, stream, device);
    }
  });
}

}  // namespace membound::cuda
