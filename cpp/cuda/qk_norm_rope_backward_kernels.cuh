// SPDX-FileCopyrightText: The membound authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A block takes one part of the rows that share a weight; a row is one head of one token. In the
// form of chunks its slots, a few lanes each, take row after row: chunks of the gradient and of x
// come in, dx goes out, and the sums of dweight stay in registers until shared memory adds up the
// slots. In the general form a warp does the same element by element, slot after slot: the same
// tree. Limited by instructions, 650 for a head of 128 in each of a warp's four slots, and by the
// latency of one head after the other (H200: 52 % of the issue slots).
#include "cuda/cluster.cuh"
#include "cuda/column_gradient.cuh"
#include "cuda/qk_norm_head.cuh"
#include "cuda/tuning/qk_norm_rope_backward.hpp"
#include "ops/qk_norm_rope_backward.hpp"

namespace membound::cuda {

// The rows of one array that share a weight, in parts.
struct GroupParts {
  std::int64_t groups, rows, part_rows, parts;
  RowDivider by_groups, by_heads;
};

template <class A>
struct QkNormRopeBackwardParams {
  RopeProblem rope;
  HeadGradient arrays[2];
  GroupParts parts[2];
  ColumnArray<A> weights[2];
  A* partials[2];  // [parts][groups][head_dim]; null: no dweight
  QkNorm<A> norm;
  RowDivider by_seq;
  int lanes, slots;
  bool round_normed;
  bool table_in_chunks;
};

// What a block works on.
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

// Where a row is.
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

// What one chunk adds to the sum of g * h.
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
__device__ inline void add_to_sums(Numbers<T>& sums, const Numbers<T>& t, const Numbers<T>& h,
                                   bool round_normed) {
#pragma unroll
  for (int i = 0; i < kPack<T>; ++i) {
    sums.at[i] = fma(t.at[i], round_normed ? round_to<T>(h.at[i]) : h.at[i], sums.at[i]);
  }
}

// of_slots: what the slots' sums are added up in, [slot][element].
template <class T>
__device__ inline void gradients_in_chunks(const QkNormRopeBackwardParams<accumulate_t<T>>& p,
                                           accumulate_t<T>* of_slots) {
  using A = accumulate_t<T>;
  const BlockPart block(p);
  const int lanes = p.lanes;
  const int slot = threadIdx.x >> log2_of(lanes), lane = threadIdx.x & (lanes - 1);
  const RopeHeads& array = p.rope.arrays[block.array];
  const HeadGradient& gradient = p.arrays[block.array];
  const HeadLanes head{lane, lanes, static_cast<int>(p.rope.head_dim) / (2 * kPack<T>)};
  const int first = lane * kPack<T>, second = (head.half + lane) * kPack<T>;
  HeadPart<T> weight;
  read_weight<T>(p.weights[block.array], block.group, head, weight);
  HeadPart<T> sums{};
#pragma unroll 1
  for (std::int64_t from = block.first; from < block.last; from += p.slots) {
    const bool active = from + slot < block.last;  // sums need every lane of a warp
    const HeadRow row = head_row(p, block, active ? from + slot : from);
    const T* dy = static_cast<const T*>(array.x) + row_start(array.x_strides, row);
    const T* x = static_cast<const T*>(gradient.x) + row_start(gradient.x_strides, row);
    uint4 x_first{}, x_second{}, dy_first{}, dy_second{};
    if (head.holds()) {
      x_first = *reinterpret_cast<const uint4*>(x + first);
      x_second = *reinterpret_cast<const uint4*>(x + second);
      dy_first = *reinterpret_cast<const uint4*>(dy + first);
      dy_second = *reinterpret_cast<const uint4*>(dy + second);
    }
    HeadPart<T> t{unpack<T>(dy_first), unpack<T>(dy_second)};
    Turns<T> turns;
    read_head_turns<T>(p.rope, p.table_in_chunks, row.b, row.s, head, turns);
    A rstd;
    if (gradient.rstd.data != nullptr) {
      rstd = saved_rstd<A>(gradient.rstd, row);
    } else {
      const HeadPart<T> part{unpack<T>(x_first), unpack<T>(x_second)};
      const HeadScale<A> by = head_scale<T>(p.norm, part, x_first, x_second, head);
      rstd = by.rstd * by.scale;
    }
    turn_head<T>(t, turns, p.rope.interleaved);
    HeadPart<T> h{unpack<T>(x_first), unpack<T>(x_second)};
    multiply<T>(h, rstd);
    if (active && p.partials[block.array] != nullptr) {
      add_to_sums<T>(sums.first, t.first, h.first, p.round_normed);
      add_to_sums<T>(sums.second, t.second, h.second, p.round_normed);
    }
    multiply<T>(t, weight);
    const A sum = head.sum(dot<T>(t.first, h.first), dot<T>(t.second, h.second));
    const A mean = product(sum, p.norm.inverse_cols);
    if (!active || !head.holds()) continue;
#pragma unroll
    for (int i = 0; i < kPack<T>; ++i) {
      t.first.at[i] = product(fma(-h.first.at[i], mean, t.first.at[i]), rstd);
      t.second.at[i] = product(fma(-h.second.at[i], mean, t.second.at[i]), rstd);
    }
    T* dx = static_cast<T*>(array.out) + row_start(array.out_strides, row);
    *reinterpret_cast<uint4*>(dx + first) = pack(t.first);
    *reinterpret_cast<uint4*>(dx + second) = pack(t.second);
  }
  if (p.partials[block.array] == nullptr) return;
  const int head_dim = static_cast<int>(p.rope.head_dim);
#pragma unroll
  for (int i = 0; i < (head.holds() ? kPack<T> : 0); ++i) {
    of_slots[slot * head_dim + first + i] = sums.first.at[i];
    of_slots[slot * head_dim + second + i] = sums.second.at[i];
  }
  __syncthreads();
  for (int element = threadIdx.x; element < head_dim;
       element += tuning::kQkNormRopeBackwardThreads) {
    A total = 0;
    for (int i = 0; i < p.slots; ++i) total += of_slots[i * head_dim + element];
    p.partials[block.array]
              [(block.part * p.parts[block.array].groups + block.group) * p.rope.head_dim +
               element] = total;
  }
}

// Aligned heads that turn as a whole.
template <class T>
__global__ void __launch_bounds__(tuning::kQkNormRopeBackwardThreads,
                                  tuning::kQkNormRopeBackwardBlocks)
    qk_norm_rope_backward_chunks_kernel(
        const __grid_constant__ QkNormRopeBackwardParams<accumulate_t<T>> p) {
  __shared__ accumulate_t<T> of_slots[2 * kPack<T> * tuning::kQkNormRopeBackwardThreads];
  begin_overlapped();
  gradients_in_chunks<T>(p, of_slots);
}

// The gradient of one element of the output before it turned.
template <class A>
__device__ __noinline__ A turned_back(const RopeProblem& rope, const StridedHead& dy,
                                      const HeadRow& row, std::int64_t element) {
  const A own = dy.number<A>(element);
  const std::int64_t at = element - rope.rotary_offset, pairs = rope.rotary_dim / 2;
  if (at < 0 || at >= 2 * pairs) return own;
  const bool is_second = rope.interleaved ? at % 2 == 1 : at >= pairs;
  const std::int64_t pair = rope.interleaved ? at / 2 : is_second ? at - pairs : at;
  const std::int64_t apart = rope.interleaved ? 1 : pairs;
  const A other = dy.number<A>(is_second ? element - apart : element + apart);
  Turn<A> turn = one_turn<A>(rope, angle_row(rope, pair, row.b, row.s), pair);
  if (rope.inverse) turn.sin = -turn.sin;
  return is_second ? product(own, turn.cos) + product(other, turn.sin)
                   : product(own, turn.cos) - product(other, turn.sin);
}

// Any strides and dtype: a warp.
template <class A>
__global__ void __launch_bounds__(kWarpLanes)
    qk_norm_rope_backward_heads_kernel(const __grid_constant__ QkNormRopeBackwardParams<A> p) {
  __shared__ A turned[kMaxQkNormHeadDim];  // each element is one lane's alone, like those below
  __shared__ A of_slot[kMaxQkNormHeadDim];
  __shared__ A totals[kMaxQkNormHeadDim];
  begin_overlapped();
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
    each([&](std::int64_t element) { of_slot[element] = 0; });
#pragma unroll 1
    for (std::int64_t at = block.first + slot; at < block.last; at += p.slots) {
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
        A t = turned_back<A>(rope, dy, row, element);
        if (sums) {
          A h = normed(element);
          if (p.round_normed) h = round_number(h, rope.dtype);
          of_slot[element] = fma(t, h, of_slot[element]);
        }
        if (p.weights[block.array].data != nullptr) {
          t = product(t, weight_number(p.weights[block.array], row.head, element));
        }
        turned[element] = t;
      });
      __syncwarp();
      const A dot = sum_elements<A>(head_dim, pack_of(rope.dtype), [&](std::int64_t i, A sum) {
        return fma(turned[i], normed(i), sum);
      });
      const A mean = product(dot, p.norm.inverse_cols);
      const std::int64_t to = row_start(array.out_strides, row);
      each([&](std::int64_t element) {
        put_number(array.out, rope.dtype, to + element * array.out_strides.dim,
                   product(fma(-normed(element), mean, turned[element]), rstd));
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
