// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// qk_norm_rope with one vector of each head per lane. A warp has a few rows at once, each of up to
// kQkNormHeads heads of one token. It prefetches the first heads, finds weight, cos and sin, then
// normalises, rotates and stores two heads at a time while prefetching later ones. Shared memory:
// exchange of the elements of pairs. Instruction-bound: about 185 per step of as many heads as a
// warp holds, and 700 before the first.
#include "cuda/rope/qk_norm_rope_kernels.cuh"

namespace membound::cuda {

template <class T>
__device__ inline void copy_values_by_lanes(const QkNormRopeParams<accumulate_t<T>>& p,
                                            const HeadVector& mine, int local) {
  pdl_wait_then_launch();
  if (!mine.holds) return;
  ValueRow row = value_row(p, local);
  const int first = mine.vector * kPack<T>;
  const int left = static_cast<int>(p.rope_params.rope.head_dim) - first;
  const int count = left < kPack<T> ? left : kPack<T>;
  const RopeStrides &from = p.values.x_strides, &to = p.values.out_strides;
  const T* x = reinterpret_cast<const T*>(row.from) + first * from.dim;
  T* out = reinterpret_cast<T*>(row.to) + first * to.dim;
#pragma unroll 2
  for (int i = 0; i < row.heads; ++i) {
    store_vector(out, to.dim, count, p.access, load_vector(x, from.dim, count, p.access));
    x += from.head;
    out += to.head;
  }
}

// For heads of any strides, and of any width for which a warp has a lane per vector.
template <class T>
__global__ void __launch_bounds__(tuning::kQkNormRopeThreads, tuning::kQkNormLaneBlocks)
    qk_norm_rope_lanes_kernel(const __grid_constant__ QkNormRopeParams<accumulate_t<T>> p) {
  using A = accumulate_t<T>;
  constexpr int kAtOnce = tuning::kQkNormLaneHeads;
  __shared__ HeadExchange<T> exchanges[tuning::kQkNormRopeThreads / kWarpLanes];
  pdl_launch_unless_few();
  const HeadVector mine(p.warp);
  const int warp = threadIdx.x / kWarpLanes, local = warp * p.warp.heads + mine.head;
  if (blockIdx.x >= p.first_value_block) return copy_values_by_lanes<T>(p, mine, local);
  const std::int64_t index = std::int64_t{blockIdx.x} * p.rope_params.rows_per_block + local;
  const bool active = mine.holds && index < p.rope_params.rows;  // sums need all lanes of a warp
  const RopeRow row = rope_row(p.rope_params, active ? index : 0);
  const HeadsOfRow heads = heads_of_row(p.rope_params, row.group);
  const RopeHeads& array = p.rope_params.rope.arrays[heads.array];
  const int first = mine.vector * kPack<T>;
  const int left = static_cast<int>(p.rope_params.rope.head_dim) - first;
  const int elements = !active ? 0 : left < kPack<T> ? left : kPack<T>;
  const T* x = static_cast<const T*>(array.x) + array.x_strides.at(row.b, row.s) +
               heads.first * array.x_strides.head + first * array.x_strides.dim;
  const std::int64_t x_step = heads.step * array.x_strides.head;
  const std::int64_t out_step = heads.step * array.out_strides.head;
  pdl_wait_after(x, x);
  Slot slot{row.b, row.s, active};
  if (active && heads.array == p.cached) slot = slot_of(p.cache, p.by_block, row.b, row.s);
  T* out = static_cast<T*>(array.out) + array.out_strides.at(slot.b, slot.s) +
           heads.first * array.out_strides.head + first * array.out_strides.dim;
  const int count = slot.in_cache ? heads.count : 0;
  uint4 loaded[kAtOnce] = {};
  const auto prefetch = [&](int number, int i) {
    if (number >= count) return;
    loaded[i] = load_vector(x, array.x_strides.dim, elements, p.access);
    x += x_step;
  };
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) prefetch(i, i);
  const AffineArray<A>& weights = p.weights[heads.array];
  const bool weights_differ = weights.head_stride != 0;
  const Numbers<T> weight = lane_weight<T>(weights, p.common_weights, heads.first, first, elements);
  LaneRotations<T> rotations;
  rotations.find(p.rope_params.rope, p.rope_params.table_in_vectors, row.b, row.s, mine,
                 p.warp.vectors, exchanges[warp]);
  const HeadStatistic& rstds = p.rstds[heads.array];
  A* rstd = static_cast<A*>(mine.vector == 0 ? rstds.data : nullptr);
  const bool writes_rstd = rstd != nullptr;
  const std::int64_t rstd_step = heads.step * rstds.strides.head;
  if (writes_rstd) rstd += rstds.strides.at(row.b, row.s) + heads.first * rstds.strides.head;
#pragma unroll 1
  for (int done = 0; done < p.rope_params.heads_per_thread; done += kAtOnce) {
    Numbers<T> numbers[kAtOnce];
    HeadScale<A> by[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      numbers[i] = unpack_now<T>(loaded[i]);
      prefetch(done + i + kAtOnce, i);
    }
    scale_vectors<T>(p.norm, numbers, mine, by);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      multiply<T>(numbers[i], by[i].rstd);
      if (p.round_normed) numbers[i] = rounded<T>(numbers[i]);
      if (weights_differ) {
        const std::int64_t head = heads.first + (done + i) * heads.step;
        multiply<T>(numbers[i], lane_weight_of_head<T>(weights, p.common_weights, head, first,
                                                       done + i < count ? elements : 0));
      } else {
        multiply<T>(numbers[i], weight);
      }
      if (p.round_weighted) numbers[i] = rounded<T>(numbers[i]);
    }
    __syncwarp();  // all lanes have read the previous heads and the angles
    rotations.rotate(numbers, exchanges[warp]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (done + i >= count) break;
      if (writes_rstd) {
        *rstd = by[i].rstd * by[i].scale;
        rstd += rstd_step;
      }
      store_vector(out, array.out_strides.dim, elements, p.access, pack(numbers[i]));
      out += out_step;
    }
  }
}

}  // namespace membound::cuda
