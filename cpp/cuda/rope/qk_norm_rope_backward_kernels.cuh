// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Gradient of qk_norm_rope; a row is one head of one token, and a block has one part of the rows
// that share a weight. A slot, a few lanes, takes a run of rows, mostly heads of one token with the
// same cos and sin. It prefetches dy and x of the next row and keeps its dweight sums in registers.
// Shared memory: the weight, and finally the sums of the slots. The generic form does the same
// element by element with one warp, slot after slot, in the same tree. Limited by memory and
// instructions (about 300 for a head of 128 in each of a warp's four slots).
#include "cuda/launch/cache_hint.cuh"
#include "cuda/rope/qk_norm_lanes.cuh"
#include "cuda/rope/qk_norm_rope_backward_config.hpp"
#include "cuda/rope/qk_norm_weight.cuh"
#include "cuda/row/cluster.cuh"
#include "cuda/row/column_sum.cuh"
#include "ops/qk_norm_rope_backward.hpp"

namespace membound::cuda {

// Rows of one array that share a weight, split into parts.
struct GroupParts {
  std::int64_t groups, rows, part_rows, parts, slot_rows;
  std::int64_t dy_step, x_step, dx_step, rstd_step;  // from a row of a slot to its next
  RowDivider by_groups, by_heads;
};

template <class A>
struct QkNormRopeBackwardParams {
  RopeProblem rope;
  HeadGradient arrays[2];
  GroupParts parts[2];
  AffineArray<A> weights[2];
  A* partials[2];  // [parts][groups][head_dim]; null: no dweight
  QkNorm<A> norm;
  RowDivider by_seq;
  int lanes, slots, together;
  bool round_normed;
  bool table_in_vectors;
  // For the form with one vector per lane.
  tuning::WarpHeads warp;
  VectorAccess access;
  bool common_weights;
};

// The work of a block.
struct BlockPart {
  int array;
  std::int64_t group, part, first, last;  // rows

  template <class A>
  __device__ BlockPart(const QkNormRopeBackwardParams<A>& p) {
    const std::int64_t blocks_of_q = p.parts[0].groups * p.parts[0].parts;
    std::int64_t block = blockIdx.x;
    array = block >= blocks_of_q ? 1 : 0;
    if (array == 1) block -= blocks_of_q;
    const GroupParts& all = p.parts[array];
    part = quotient(block, all.by_groups);
    group = block - part * all.groups;
    first = part * all.part_rows;
    last = first + all.part_rows < all.rows ? first + all.part_rows : all.rows;
  }
};

// Rows of a slot: first, first + step, ... `together` slots alternate on one run of rows.
struct SlotRows {
  std::int64_t first;
  int step, count, most;  // most: of any slot of the block

  template <class A>
  __device__ SlotRows(const QkNormRopeBackwardParams<A>& p, const BlockPart& block, int slot) {
    step = p.together;
    const std::int64_t each = p.parts[block.array].slot_rows;
    const int within = slot & (step - 1);
    first = block.first + (slot - within) * each + within;
    count = rounds_from(first, each, block.last);
    most = rounds_from(block.first, each, block.last);
  }
  __device__ std::int64_t at(int round) const { return first + std::int64_t{round} * step; }

 private:
  __device__ int rounds_from(std::int64_t from, std::int64_t each, std::int64_t last) const {
    const std::int64_t rounds = from < last ? (last - from + step - 1) >> log2_of(step) : 0;
    return static_cast<int>(rounds < each ? rounds : each);
  }
};

// Position of a row.
struct HeadRow {
  std::int64_t b, s, head;
};
template <class A>
__device__ inline HeadRow head_row(const QkNormRopeBackwardParams<A>& p, const BlockPart& block,
                                   std::int64_t row) {
  std::int64_t token = row, head = block.group;
  if (p.parts[block.array].groups == 1) {
    const RowDivider& by_heads = p.parts[block.array].by_heads;
    token = quotient(row, by_heads);
    head = row - token * by_heads.extent;
  }
  const std::int64_t b = quotient(token, p.by_seq);
  return {b, token - b * p.rope.seq, head};
}
__device__ inline std::int64_t row_start(const RopeStrides& strides, const HeadRow& row) {
  return strides.at(row.b, row.s) + row.head * strides.head;
}

template <class A>
__device__ inline A saved_rstd(const HeadStatistic& rstd, const HeadRow& row) {
  return static_cast<const A*>(rstd.data)[row_start(rstd.strides, row)];
}

// Contribution of one vector to the sum of g * h.
template <class T>
__device__ inline accumulate_t<T> dot(const Numbers<T>& g, const Numbers<T>& h) {
  accumulate_t<T> even = 0, odd = 0;
#pragma unroll
  for (int i = 0; i < kPack<T>; i += 2) {
    even = fma(g.at[i], h.at[i], even);
    odd = fma(g.at[i + 1], h.at[i + 1], odd);
  }
  return even + odd;
}

template <class T>
__device__ inline void add_to_sums(HeadPart<T>& sums, const HeadPart<T>& t, const HeadPart<T>& h) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    sums.first.at[i] = fma(t.first.at[i], h.first.at[i], sums.first.at[i]);
    sums.second.at[i] = fma(t.second.at[i], h.second.at[i], sums.second.at[i]);
  }
}

// Pointers to a lane's first vector in the current row of its slot.
template <class T>
struct RowPointers {
  const T *dy, *x;
  T* dx;
  const accumulate_t<T>* rstd;
  int of_token;  // heads of the token from this one on
  bool new_token;

  __device__ void find(const QkNormRopeBackwardParams<accumulate_t<T>>& p, const BlockPart& block,
                       std::int64_t number, int first) {
    const RopeHeads& array = p.rope.arrays[block.array];
    const HeadGradient& gradient = p.arrays[block.array];
    const HeadRow row = head_row(p, block, number);
    dy = static_cast<const T*>(array.x) + row_start(array.x_strides, row) +
         first * array.x_strides.dim;
    x = static_cast<const T*>(gradient.x) + row_start(gradient.x_strides, row) +
        first * gradient.x_strides.dim;
    dx = static_cast<T*>(array.out) + row_start(array.out_strides, row) +
         first * array.out_strides.dim;
    rstd = reinterpret_cast<const accumulate_t<T>*>(x);  // without saved rstd, any valid address
    if (gradient.rstd.data != nullptr) {
      rstd = static_cast<const accumulate_t<T>*>(gradient.rstd.data) +
             row_start(gradient.rstd.strides, row);
    }
    constexpr std::int64_t kMost = 1 << 30;
    const std::int64_t heads = array.heads - row.head;
    of_token = static_cast<int>(heads < kMost ? heads : kMost);
    if (p.parts[block.array].groups != 1) of_token = 1;
    new_token = true;
  }
  // Moves on to the slot's next row, which is row `number`.
  __device__ void advance(const QkNormRopeBackwardParams<accumulate_t<T>>& p,
                          const BlockPart& block, std::int64_t number, int first) {
    of_token -= p.together;
    if (of_token <= 0) return find(p, block, number, first);
    const GroupParts& rows = p.parts[block.array];
    dy += rows.dy_step;
    x += rows.x_step;
    dx += rows.dx_step;
    rstd += rows.rstd_step;
    new_token = false;
  }
};

// Prefetched data of a row.
template <class A>
struct RowLoads {
  uint4 x_first, x_second, dy_first, dy_second;
  A rstd;

  template <class T>
  __device__ void load(const RowPointers<T>& pointers, const HeadLanes& head) {
    const int apart = head.half * kPack<T>;
    rstd = *pointers.rstd;
    x_first = read_vector(pointers.x);
    x_second = read_vector(pointers.x + apart);
    dy_first = read_vector(pointers.dy);
    dy_second = read_vector(pointers.dy + apart);
  }
};

// Shared memory of a block: the weight, and the slots' sums, [slot][element].
template <class T>
struct GradientMemory {
  SharedWeight<T> weight;
  SecondRotations<T, kPack<T>, tuning::kQkNormRopeBackwardThreads> seconds;
  float of_slots[2 * kPack<T> * tuning::kQkNormRopeBackwardThreads];
};

template <class T>
__device__ inline void gradients_in_vectors(const QkNormRopeBackwardParams<accumulate_t<T>>& p,
                                            GradientMemory<T>& memory) {
  using A = accumulate_t<T>;
  const BlockPart block(p);
  const int lanes = p.lanes;
  const int slot = threadIdx.x >> log2_of(lanes), lane = threadIdx.x & (lanes - 1);
  const HeadLanes head{lane, lanes, static_cast<int>(p.rope.head_dim) / (2 * kPack<T>)};
  // Lanes without vectors read the first ones, which no sum counts.
  const int first = (head.holds() ? lane : 0) * kPack<T>, second = first + head.half * kPack<T>;
  const bool sums_up = p.partials[block.array] != nullptr;
  HeadPart<T> sums{};
  Rotations<T> rotations;
  const bool shared = !p.rope.has_column_each();
  // Sums need all lanes of a warp, so slots without a row repeat their last one, or the block's
  // first.
  const SlotRows rows(p, block, slot);
  RowPointers<T> pointers;
  pointers.find(p, block, rows.count > 0 ? rows.first : block.first, first);
  RowLoads<A> next;
  next.load(pointers, head);
  if (slot == 0) {
    const AffineArray<A>& weight = p.weights[block.array];
    WeightVectors<T> vectors{};
    vectors.load(weight, block.group, head);
    memory.weight.store(vectors.numbers(weight, head), lane);
  }
  __syncthreads();
#pragma unroll 1
  for (int round = 0; round < rows.most; ++round) {
    const bool active = round < rows.count;
    if (pointers.new_token) {
      const HeadRow row = head_row(p, block, active ? rows.at(round) : block.first);
      read_head_rotations<T>(p.rope, p.table_in_vectors, row.b, row.s, head, rotations,
                             memory.seconds);
    }
    HeadPart<T> h = unpack_part<T>(next.x_first, next.x_second);
    HeadPart<T> t = unpack_part<T>(next.dy_first, next.dy_second);
    A rstd = next.rstd;
    if (p.arrays[block.array].rstd.data == nullptr) {
      HeadPart<T> part = h;
      const HeadScale<A> by = scale_head<T>(p.norm, part, head);
      rstd = by.rstd * by.scale;
    }
    T* const dx = pointers.dx;
    if (round + 1 < rows.count) pointers.advance(p, block, rows.at(round + 1), first);
    next.load(pointers, head);
    memory.seconds.rotate(t.first, t.second, rotations, shared, p.rope.interleaved);
    multiply<T>(h, rstd);
    if (active && sums_up) {
      if (p.round_normed) {
        HeadPart<T> rounded = h;
        round_part<T>(rounded);
        add_to_sums<T>(sums, t, rounded);
      } else {
        add_to_sums<T>(sums, t, h);
      }
    }
    multiply<T>(t, memory.weight.load(lane));
    const A sum = head.sum(dot<T>(t.first, h.first), dot<T>(t.second, h.second));
    const A mean = product(sum, p.norm.inverse_cols);
    if (!active || !head.holds()) continue;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      t.first.at[i] = product(fma(-h.first.at[i], mean, t.first.at[i]), rstd);
      t.second.at[i] = product(fma(-h.second.at[i], mean, t.second.at[i]), rstd);
    }
    *reinterpret_cast<uint4*>(dx) = pack(t.first);
    *reinterpret_cast<uint4*>(dx + head.half * kPack<T>) = pack(t.second);
  }
  if (!sums_up) return;
  const int head_dim = static_cast<int>(p.rope.head_dim);
#pragma unroll
  for (int i = 0; i < (head.holds() ? kPack<T> : 0); ++i) {
    memory.of_slots[slot * head_dim + first + i] = sums.first.at[i];
    memory.of_slots[slot * head_dim + second + i] = sums.second.at[i];
  }
  __syncthreads();
  for (int element = threadIdx.x; element < head_dim;
       element += tuning::kQkNormRopeBackwardThreads) {
    A total = 0;
    for (int i = 0; i < p.slots; ++i) total += memory.of_slots[i * head_dim + element];
    p.partials[block.array]
              [(block.part * p.parts[block.array].groups + block.group) * p.rope.head_dim +
               element] = total;
  }
}

// For aligned heads that rotate as a whole.
template <class T>
__global__ void __launch_bounds__(tuning::kQkNormRopeBackwardThreads,
                                  tuning::kQkNormRopeBackwardBlocks)
    qk_norm_rope_backward_vectors_kernel(
        const __grid_constant__ QkNormRopeBackwardParams<accumulate_t<T>> p) {
  __shared__ GradientMemory<T> memory;
  pdl_wait_and_launch();
  gradients_in_vectors<T>(p, memory);
}

// Gradient of one element before the rotation.
template <class A>
__device__ __noinline__ A rotated_back(const RopeProblem& rope, const StridedHead& dy,
                                       const HeadRow& row, std::int64_t element) {
  const A own = dy.number<A>(element);
  const std::int64_t at = element - rope.rotary_offset, pairs = rope.rotary_dim / 2;
  if (at < 0 || at >= 2 * pairs) return own;
  const bool is_second = rope.interleaved ? at % 2 == 1 : at >= pairs;
  const std::int64_t pair = rope.interleaved ? at / 2 : is_second ? at - pairs : at;
  const std::int64_t apart = rope.interleaved ? 1 : pairs;
  const A other = dy.number<A>(is_second ? element - apart : element + apart);
  Rotation<A> rotation =
      one_rotation<A>(rope, angle_row(rope, pair, row.b, row.s), pair, is_second ? 1 : 0);
  if (rope.inverse) rotation.sin = -rotation.sin;
  return is_second ? product(own, rotation.cos) + product(other, rotation.sin)
                   : product(own, rotation.cos) - product(other, rotation.sin);
}

// Generic kernel: any strides and dtype, for float64 and for heads with more vectors than a warp
// has lanes. One warp per block.
template <class A>
__global__ void __launch_bounds__(kWarpLanes)
    qk_norm_rope_backward_heads_kernel(const __grid_constant__ QkNormRopeBackwardParams<A> p) {
  __shared__ A rotated[kMaxQkNormHeadDim];  // each element has one writing lane, as below
  __shared__ A of_slot[kMaxQkNormHeadDim];
  __shared__ A totals[kMaxQkNormHeadDim];
  pdl_wait_and_launch();
  const BlockPart block(p);
  const int lane = threadIdx.x;
  const RopeProblem& rope = p.rope;
  const RopeHeads& array = rope.arrays[block.array];
  const HeadGradient& gradient = p.arrays[block.array];
  const bool sums = p.partials[block.array] != nullptr;
  const std::int64_t head_dim = rope.head_dim;
  const auto each = [&](auto body) {
#pragma unroll 1
    for (std::int64_t element = lane; element < head_dim; element += kWarpLanes) body(element);
  };
  each([&](std::int64_t element) { totals[element] = 0; });
#pragma unroll 1
  for (int slot = 0; slot < p.slots; ++slot) {
    const SlotRows rows(p, block, slot);
    each([&](std::int64_t element) { of_slot[element] = 0; });
#pragma unroll 1
    for (int round = 0; round < rows.count; ++round) {
      const std::int64_t at = rows.at(round);
      const HeadRow row = head_row(p, block, at);
      const StridedHead dy{array.x, row_start(array.x_strides, row), array.x_strides.dim,
                           rope.dtype};
      const StridedHead x{gradient.x, row_start(gradient.x_strides, row), gradient.x_strides.dim,
                          rope.dtype};
      A rstd;
      if (gradient.rstd.data != nullptr) {
        rstd = saved_rstd<A>(gradient.rstd, row);
      } else {
        const HeadScale<A> by = strided_head_scale(p.norm, x, head_dim);
        rstd = by.rstd * by.scale;
      }
      const auto normed = [&](std::int64_t element) { return product(x.number<A>(element), rstd); };
      each([&](std::int64_t element) {
        A t = rotated_back<A>(rope, dy, row, element);
        if (sums) {
          A h = normed(element);
          if (p.round_normed) h = round_number(h, rope.dtype);
          of_slot[element] = fma(t, h, of_slot[element]);
        }
        if (p.weights[block.array].data != nullptr) {
          t = product(t, weight_number(p.weights[block.array], row.head, element));
        }
        rotated[element] = t;
      });
      __syncwarp();
      const A dot = sum_elements<A>(head_dim, pack_of(rope.dtype), [&](std::int64_t i, A sum) {
        return fma(rotated[i], normed(i), sum);
      });
      const A mean = product(dot, p.norm.inverse_cols);
      const std::int64_t to = row_start(array.out_strides, row);
      each([&](std::int64_t element) {
        store_number(array.out, rope.dtype, to + element * array.out_strides.dim,
                     product(fma(-normed(element), mean, rotated[element]), rstd));
      });
      __syncwarp();
    }
    each([&](std::int64_t element) { totals[element] += of_slot[element]; });
  }
  if (!sums) return;
  A* to =
      p.partials[block.array] + (block.part * p.parts[block.array].groups + block.group) * head_dim;
  each([&](std::int64_t element) { to[element] = totals[element]; });
}

}  // namespace membound::cuda
