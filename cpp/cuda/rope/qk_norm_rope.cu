// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#include "core/dispatch.hpp"
#include "cuda/launch/launch.hpp"
#include "cuda/rope/qk_norm_rope_lane_kernels.cuh"
#include "cuda/rope/qk_norm_rope_layout.cuh"
#include "ops/qk_norm_rope.hpp"

namespace membound::cuda {

namespace {

// True if the cached heads can be accessed in vectors.
template <class T>
bool caches_in_vectors(const QkNormRopeProblem& problem) {
  const RopeProblem& p = problem.rope;
  const RopeHeads& v = problem.values;
  return cache_in_vectors<T>(p.arrays[p.count - 1]) &&
         (v.heads == 0 || (in_vectors<T>(p, v.x, v.x_strides, v.heads) && cache_in_vectors<T>(v)));
}

// True if every head of a call is aligned to kElements elements and consists of such vectors.
template <class T, int kElements>
bool is_aligned_to(const QkNormRopeProblem& problem) {
  const RopeProblem& p = problem.rope;
  const RopeHeads& v = problem.values;
  bool all = p.head_dim % kElements == 0;
  for (int i = 0; i < p.count && all; ++i) {
    const RopeHeads& array = p.arrays[i];
    all = in_vectors<T, kElements>(p, array.x, array.x_strides, array.heads) &&
          (problem.is_cached(i)
               ? cache_in_vectors<T, kElements>(array)
               : in_vectors<T, kElements>(p, array.out, array.out_strides, array.heads));
  }
  return all && (v.heads == 0 || (in_vectors<T, kElements>(p, v.x, v.x_strides, v.heads) &&
                                  cache_in_vectors<T, kElements>(v)));
}
template <class T>
bool has_vectors(const QkNormRopeProblem& problem) {
  const bool cached = problem.cache.given();
  bool all = rotates_in_vectors<T>(problem.rope, cached ? problem.rope.count - 1 : -1) &&
             (!cached || caches_in_vectors<T>(problem));
  for (int i = 0; i < problem.rope.count; ++i) {
    all = all && weight_in_vectors<T>(problem.rope, problem.weights[i]);
  }
  return all;
}

}  // namespace

void qk_norm_rope(const QkNormRopeProblem& problem, StreamView stream) {
  dispatch_floating(problem.rope.dtype, "qk_norm_rope", [&]<class T>() {
    using A = accumulate_t<T>;
    const RopeProblem& rope = problem.rope;
    const bool vectors = has_vectors<T>(problem);
    const bool lanes =
        !vectors && kHasVectorsKernel<T> && tuning::qk_norm_fits_lanes(rope.head_dim, sizeof(T));
    QkNormRopeParams<A> p{};
    p.warp = tuning::warp_heads(rope.head_dim, sizeof(T));
    const std::int64_t k_heads = rope.count == 2 ? rope.arrays[1].heads : 0;
    const tuning::QkNormRopeConfig config =
        lanes ? tuning::qk_norm_lane_config(rope.tokens(), rope.arrays[0].heads, k_heads, p.warp)
              : tuning::qk_norm_rope_config(rope.tokens(), rope.arrays[0].heads, k_heads,
                                            rope.head_dim, sizeof(T), vectors);
    p.rope_params.rope = rope;
    set_rows(p.rope_params, config);
    p.rope_params.units = rope.head_dim / (2 * kPack<T>);
    p.rope_params.rotary_units = rope.rotary_dim / 2;
    p.rope_params.table_in_vectors =
        vectors ? table_in_vectors<T>(rope) : has_common_table<T>(rope);
    p.access = vector_access<T>(
        [&](auto elements) { return is_aligned_to<T, decltype(elements)::value>(problem); });
    p.common_weights = true;
    for (int i = 0; i < rope.count; ++i) {
      p.weights[i] = weight_columns<T>(problem.weights[i], problem.weight_offset);
      p.rstds[i] = problem.rstds[i];
      const std::int64_t heads = p.rope_params.groups[i].count;
      p.steps[i] = {heads * rope.arrays[i].x_strides.head, heads * rope.arrays[i].out_strides.head,
                    heads * problem.rstds[i].strides.head};
      p.common_weights = p.common_weights && is_common_weight<T>(rope, problem.weights[i]);
    }
    set_rstd(p.norm, rope.head_dim, problem.eps, A());
    p.round_normed = problem.round_normed;
    p.round_weighted = problem.round_weighted;
    p.cache = problem.cache;
    p.cached = problem.cache.given() ? rope.count - 1 : -1;
    p.values = problem.values;
    p.value_size = sizeof(T);
    p.by_value_groups = divider(tuning::qk_norm_value_groups(config, problem.values.heads));
    p.by_seq = divider(rope.seq);
    p.by_block = divider(problem.cache.block_size);
    p.first_value_block = config.blocks;
    const std::int64_t value_blocks =
        tuning::qk_norm_value_blocks(config, rope.tokens(), problem.values.heads);
    const LaunchShape shape{.blocks = config.blocks + value_blocks,
                            .threads = lanes ? tuning::kQkNormRopeThreads : config.threads(),
                            .overlap_launch = config.overlap_launch};
    const int device = current_device();
    if constexpr (kHasVectorsKernel<T>) {
      if (vectors) return launch<qk_norm_rope_vectors_kernel<T>>(shape, stream, device, p);
      if (lanes) return launch<qk_norm_rope_lanes_kernel<T>>(shape, stream, device, p);
    }
    launch<qk_norm_rope_heads_kernel<A>>(shape, stream, device, p);
  });
}

}  // namespace membound::cuda
