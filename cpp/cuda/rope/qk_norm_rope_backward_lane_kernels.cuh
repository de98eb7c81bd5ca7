// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradient with one vector of each head per lane. A slot is the lanes of one head, with the same
// rows and the same sums as in the form with two vectors per lane. Shared memory: exchange of the
// elements of pairs, and finally the sums of the slots. Instruction-bound.
#include "cuda/rope/qk_norm_rope_backward_kernels.cuh"

namespace membound::cuda {

// Prefetched data of a row.
template <class T>
struct LaneLoads {
  uint4 x, dy;
  accumulate_t<T> rstd;

  __device__ void load(const QkNormRopeBackwardParams<accumulate_t<T>>& p, int array,
                       const RowPointers<T>& pointers, int elements) {
    rstd = p.arrays[array].rstd.data != nullptr ? *pointers.rstd : 0;
    x = load_vector(pointers.x, p.arrays[array].x_strides.dim, elements, p.access);
    dy = load_vector(pointers.dy, p.rope.arrays[array].x_strides.dim, elements, p.access);
  }
};

// For heads of any strides, and of any width for which a warp has a lane per vector.
template <class T>
__global__ void __launch_bounds__(tuning::kQkNormBackwardLaneThreads,
                                  tuning::kQkNormBackwardLaneBlocks)
    qk_norm_rope_backward_lanes_kernel(
        const __grid_constant__ QkNormRopeBackwardParams<accumulate_t<T>> p) {
  using A = accumulate_t<T>;
  __shared__ HeadExchange<T> exchanges[tuning::kQkNormBackwardLaneThreads / kWarpLanes];
  __shared__ A of_slots[2 * kPack<T> * tuning::kQkNormRopeBackwardThreads];  // [slot][element]
  pdl_wait_and_launch();
  const BlockPart block(p);
  const HeadVector mine(p.warp);
  const int warp = threadIdx.x / kWarpLanes, slot = warp * p.warp.heads + mine.head;
  const int head_dim = static_cast<int>(p.rope.head_dim), first = mine.vector * kPack<T>;
  const int left = head_dim - first;
  const int elements = !mine.holds ? 0 : left < kPack<T> ? left : kPack<T>;
  const bool sums_up = p.partials[block.array] != nullptr;
  // Sums need all lanes of a warp, so slots without a row repeat their last one, or the block's
  // first.
  const SlotRows rows(p, block, mine.holds ? slot : p.slots);
  RowPointers<T> pointers;
  pointers.find(p, block, rows.count > 0 ? rows.first : block.first, first);
  LaneLoads<T> next;
  next.load(p, block.array, pointers, elements);
  const Numbers<T> weight =
      lane_weight<T>(p.weights[block.array], p.common_weights, block.group, first, elements);
  Numbers<T> sums{};
  LaneRotations<T> rotations;
#pragma unroll 1
  for (int round = 0; round < rows.most; ++round) {
    const bool active = round < rows.count;
    if (__any_sync(0xffffffffu, pointers.new_token)) {
      const HeadRow row = head_row(
          p, block, rows.count > 0 ? rows.at(active ? round : rows.count - 1) : block.first);
      __syncwarp();  // all lanes have read the previous round
      rotations.find(p.rope, p.table_in_vectors, row.b, row.s, mine, p.warp.vectors,
                     exchanges[warp]);
    }
    Numbers<T> h = unpack_now<T>(next.x), rotated[1] = {unpack_now<T>(next.dy)};
    A rstd = next.rstd;
    T* const dx = pointers.dx;
    if (round + 1 < rows.count) {
      pointers.advance(p, block, rows.at(round + 1), first);
    } else {
      pointers.new_token = false;
    }
    next.load(p, block.array, pointers, elements);
    if (p.arrays[block.array].rstd.data == nullptr) {
      Numbers<T> part[1] = {h};
      HeadScale<A> by[1];
      scale_vectors<T>(p.norm, part, mine, by);
      rstd = by[0].rstd * by[0].scale;
    }
    __syncwarp();  // all lanes have read the previous round and the angles
    rotations.rotate(rotated, exchanges[warp]);
    Numbers<T>& t = rotated[0];
    multiply<T>(h, rstd);
    if (active && sums_up) {
      const Numbers<T> normed = p.round_normed ? rounded<T>(h) : h;
#pragma unroll
      for (int i = 0; i < kPack<T>; ++i) sums.at[i] = fma(t.at[i], normed.at[i], sums.at[i]);
    }
    multiply<T>(t, weight);
    const A mean = product(mine.combined(dot<T>(t, h), Sum()), p.norm.inverse_cols);
    if (!active) continue;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      t.at[i] = product(fma(-h.at[i], mean, t.at[i]), rstd);
    }
    store_vector(dx, p.rope.arrays[block.array].out_strides.dim, elements, p.access, pack(t));
  }
  if (!sums_up) return;
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    if (i < elements && slot < p.slots) of_slots[slot * head_dim + first + i] = sums.at[i];
  }
  __syncthreads();
  for (int element = threadIdx.x; element < head_dim; element += blockDim.x) {
    A total = 0;
    for (int i = 0; i < p.slots; ++i) total += of_slots[i * head_dim + element];
    p.partials[block.array]
              [(block.part * p.parts[block.array].groups + block.group) * p.rope.head_dim +
               element] = total;
  }
}

}  // namespace membound::cuda
